"""What each command of `countdown-train` does: the stages as plain calls, after the settings.

Only `run` is a Prefect flow run; the single stages need no server.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from flows.errors import BadInputError, RunFailedError, one_line

if TYPE_CHECKING:
    from flows.compose import PresetName
    from rl_core.config import RunConfig
    from rl_core.tracking import RunFolder

_logger = logging.getLogger(__name__)


def run(overrides: Sequence[str]) -> None:
    """Runs the whole pipeline as one Prefect flow run, and shows what became of it."""
    config = _ready(overrides)
    from flows.server import start_private_server

    server = start_private_server()
    with _shown(links=server is None):
        from flows.countdown_train import countdown_train

        if server is not None:
            server.connect()
        others = tuple(text for text in overrides if not text.startswith("preset="))
        record = countdown_train(preset=cast("PresetName", config.preset), overrides=others)
    from flows.summary import show_summary

    show_summary(config.storage.root, record["run_id"])


def generate(overrides: Sequence[str]) -> None:
    """Makes the data set, unless it is there."""
    config = _ready(overrides)
    from tasks.generate import generate_dataset

    with _shown():
        _print(generate_dataset(config))


def validate(overrides: Sequence[str]) -> None:
    """Checks the data set, and the prompts under the model's tokenizer."""
    config = _ready(overrides)
    with _shown():
        data, model_path = _prepared(config)
        _print(f"{data}: all checks passed, under the tokenizer of {model_path}")


def train(overrides: Sequence[str]) -> None:
    """Trains; data set and base model are made where they are missing."""
    config = _ready(overrides)
    from flows.run_record import choose_run, recorded
    from rl_core.tracking import RunFolder
    from tasks.progress import TrainingProgress
    from tasks.train import train_model

    with _shown():
        run = RunFolder.create(choose_run(config, None))
        with recorded(run) as stage, TrainingProgress(_logger, as_artifact=False) as progress:
            with stage("prepare"):
                data, model_path = _prepared(config)
            run.update(model=str(model_path), data=str(data))
            with stage("train"):
                train_model(
                    config,
                    run,
                    data=data,
                    model_path=model_path,
                    on_step=progress.on_step,
                    logger=_logger,
                )
    _print(run.path)


def prune(overrides: Sequence[str]) -> None:
    """Deletes the checkpoints of a run that need not stay."""
    config, run = _existing_run(overrides)
    from tasks.prune import prune_run

    with _shown():
        prune_run(config, run)


def evaluate(overrides: Sequence[str]) -> None:
    """Evaluates base and trained model of a run."""
    config, run = _existing_run(overrides)
    from tasks.evaluate import evaluate_run

    with _shown():
        evaluate_run(config, run, *_data_and_model(run))
    from flows.summary import show_summary

    show_summary(config.storage.root, run.run_id)


def report(overrides: Sequence[str]) -> None:
    """Writes the report of a run."""
    _, run = _existing_run(overrides)
    from tasks.report import write_report

    _print(write_report(run.path).html)


def preflight(overrides: Sequence[str]) -> None:
    """Says what was checked, and fails where something would stop a run."""
    from flows.compose import compose
    from tasks.preflight import preflight as look

    findings = look(compose(overrides))
    for finding in findings:
        _print(f"{finding.level:8} {finding.check:8} {finding}")
    if any(finding.level == "fatal" for finding in findings):
        raise BadInputError("preflight found what would stop a run")


def print_config(overrides: Sequence[str]) -> None:
    """Prints the resolved settings as YAML."""
    from flows.compose import compose, to_yaml

    sys.stdout.write(to_yaml(compose(overrides)))


def list_runs(overrides: Sequence[str]) -> None:
    """Prints one line per run."""
    from flows.cli_sql import terminal_width
    from flows.compose import compose
    from tasks.sql import ask
    from tasks.sql_output import render

    frame = ask("runs_overview", root=compose(overrides).storage.root)
    sys.stdout.buffer.write(render(frame, "table", width=terminal_width()))


COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "run": run,
    "generate": generate,
    "validate": validate,
    "train": train,
    "prune": prune,
    "evaluate": evaluate,
    "report": report,
    "preflight": preflight,
    "config": print_config,
    "runs": list_runs,
}


def _ready(overrides: Sequence[str]) -> RunConfig:
    """Returns the settings, if a run with them can start."""
    from flows.compose import compose
    from tasks.preflight import PreflightError, refuse_fatal
    from tasks.preflight import preflight as look

    config = compose(overrides)
    try:
        refuse_fatal(look(config))
    except PreflightError as error:
        raise BadInputError(str(error)) from None
    return config


def _existing_run(overrides: Sequence[str]) -> tuple[RunConfig, RunFolder]:
    """Returns the run named by run_id, else the latest, and its settings under the overrides."""
    import yaml

    from flows.compose import compose
    from rl_core.config import RunConfig
    from rl_core.tracking import RunFolder
    from tasks.run_files import find_runs

    given = [text for text in overrides if text.startswith(("run_id=", "storage.root="))]
    where = compose(given)
    try:
        (folder,) = find_runs(where.storage.root, where.run_id or "latest")
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        settings["run_id"] = folder.name
        settings["storage"]["root"] = where.storage.root
        base = RunConfig.model_validate(settings)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInputError(" ".join(str(error).split())) from None
    return compose([text for text in overrides if text not in given], base=base), RunFolder(folder)


def _prepared(config: RunConfig) -> tuple[Path, Path]:
    """Returns the folders of data set and base model, made and validated."""
    from tasks.base_model import base_model
    from tasks.generate import generate_dataset
    from tasks.validate import validate_dataset

    data = generate_dataset(config)
    model_path = base_model(config, data)
    validate_dataset(config, data, model_path)
    return data, model_path


def _data_and_model(run: RunFolder) -> tuple[Path, Path]:
    record = run.read()
    if record.data is None or record.model is None:
        raise BadInputError(f"run {run.run_id} did not get as far as a data set and a base model")
    return Path(record.data), Path(record.model)


@contextmanager
def _shown(*, links: bool = False) -> Iterator[None]:
    """Shows progress meanwhile; an error becomes `RunFailedError`, its notes the second line."""
    from flows.terminal import progress_on_stdout

    with progress_on_stdout(links=links):
        try:
            yield
        except (BadInputError, RunFailedError):
            raise
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            raise RunFailedError(f"{one_line(error)}\n{notes}") from error


def _print(what: object) -> None:
    sys.stdout.write(f"{what}\n")
