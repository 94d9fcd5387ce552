"""The commands that run stages as plain calls; torch, Ray and DuckDB load after the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli.commands import PROGRAM, take_arguments
from flows.cli.reply import give
from flows.cli.terminal import LineHandler, say, show_rows
from flows.errors import BadInputError, RunFailedError, one_line
from flows.prefect_patches.private_server import start_private_server
from flows.runs.lookup import (
    existing_run,
    find_run,
    refuse_unnamed,
    run_first,
    where_and_others,
)
from flows.runs.run_record import choose_run, recorded, run_to_continue
from flows.settings.compose import changed_to, compose, own_settings
from rl_core.config.run import RunConfig
from rl_core.config.unread import unread_settings
from rl_core.data.user_files import OwnFilesError
from rl_core.runs.lock import started
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.mirror import mirrored
from rl_core.system.log_file import listening
from rl_core.system.process_env import importing
from rl_core.system.words import printable
from rl_core.tracking.wandb_tracker import sync_run
from tasks import preflight as checks
from tasks.base_model import base_model, keep_curve
from tasks.generate import generate_dataset, rows_per_split
from tasks.prefect_ui.attempts import settings_in_force
from tasks.preflight_checks import Finding
from tasks.prune import prune_run
from tasks.queries.checkpoint_names import base_of_run
from tasks.rescore import rescore_run
from tasks.storage import bring_inputs_of_run, bring_records, inputs_published, published

if TYPE_CHECKING:
    from tasks.evaluate import Evaluated
    from tasks.validate import Validation

_logger = logging.getLogger(__name__)


def run(overrides: Sequence[str]) -> None:
    """Runs the whole pipeline as one Prefect flow run, and shows what became of it."""
    config = _ready(overrides, checks.preflight)
    server = start_private_server()
    with _shown(links=server is None, trains=True):
        overrides = [*overrides, *_continued(config)]
        with importing():
            from flows.countdown_train import countdown_train  # while the server starts

        if server is not None:
            server.connect()
        from prefect import tags

        with tags(PROGRAM):  # as a deployment's run: a server closes it if it dies
            record = countdown_train(overrides=tuple(overrides))
    _show_summary(RunFolder.under(config.storage.root, record["run_id"]))


def generate(overrides: Sequence[str]) -> None:
    """Makes the data set, unless it is there."""
    config = _ready(overrides, checks.preflight_data)
    with _shown(), inputs_published(config):
        folder = generate_dataset(config)
    rows = " + ".join(f"{count:,} {split}" for split, count in rows_per_split(folder).items())
    say(f"{rows} rows, of preset={config.preset}\n{folder}")


def validate(overrides: Sequence[str]) -> None:
    """Checks the data set, and the prompts under the model's tokenizer."""
    config = _ready(overrides, checks.preflight_data)
    if (why := checks.unreachable_model(config)) is None:
        checks.refuse_fatal(checks.preflight_validation(config))
    from tasks.validate import ValidationFailed, check_without_tokenizer, validate_dataset

    with _shown(), inputs_published(config):
        data = generate_dataset(config)
        if why is not None:
            count = check_without_tokenizer(config, data)
            say(f"{data}: {count} checks passed, and prompts were not measured: {why}")
            give(data=str(data), unmeasured=str(why), num_checks=count)
            return
        model_path = base_model(config, data)
        try:
            validation = validate_dataset(config, data, model_path)
        except ValidationFailed as failed:
            _show_validation(failed.validation, data, model_path)
            raise
        _show_validation(validation, data, model_path)
        say("the first prompt, as the model reads it:")
        for line in validation.rendered.splitlines():
            say(f"  {printable(line)}")
        warned = [one["check"] for one in validation.checks if one["status"] == "warning"]
        passed = f"warnings: {', '.join(warned)}" if warned else "all checks passed"
        say(f"{data}: {passed}, under the tokenizer of {model_path}")


def _show_validation(validation: Validation, data: Path, model_path: Path) -> None:
    lengths = validation.lengths
    give(
        data=str(data),
        model=str(model_path),
        num_checks=len(validation.checks),
        checks=[
            {name.replace(" ", "_"): value for name, value in one.items()}
            for one in validation.checks
        ],
        lengths=lengths and lengths.verdict,
        limits=lengths.limits if lengths else [],
        first_prompt=validation.rendered,
    )
    if lengths is not None:
        say("\n".join(lengths.lines()))


def train(overrides: Sequence[str]) -> None:
    """Trains; data set and base model are made where they are missing."""
    config = _ready(overrides, lambda c: [f for f in checks.preflight(c) if f.check != "prefect"])
    from tasks.train import train_and_show
    from tasks.validate import validate_dataset

    with _shown(trains=True):
        bring_records(config.storage)
        config = choose_run(config, None)
        with published(config), started(config) as run, recorded(run) as stage:
            unread = unread_settings(config, changed_to(config))
            for sentence in unread:
                _logger.warning("%s", sentence)
            run.update(own_settings=own_settings(config), unread=unread)
            with stage("prepare"):
                data = generate_dataset(config)
                model_path = base_model(config, data)
                validate_dataset(config, data, model_path)
            keep_curve(model_path, run.path)
            run.update(model=str(model_path), data=str(data))
            with stage("train"):
                train_and_show(config, run, data, model_path, _logger)
    say(run.path)


def prune(overrides: Sequence[str]) -> None:
    """Deletes what a run need not keep, and shows the decisions; dry_run=true only shows them."""
    arguments, settings = take_arguments("prune", overrides)
    dry_run = arguments.get("dry_run", "false")
    if dry_run not in ("true", "false"):
        raise BadInputError(f"dry_run={dry_run} must be true or false")
    config, run = existing_run(run_first(settings, "prune"))
    with _shown(), mirrored(config.storage, run.run_id):
        rows = prune_run(config, run, dry_run=dry_run == "true")
    show_rows(rows)


def evaluate(overrides: Sequence[str]) -> None:
    """Evaluates base and trained model of a run, or what checkpoint= and against= name."""
    arguments, settings = take_arguments("evaluate", overrides)
    for word in [word for word in settings if "=" not in word and "/" in word]:
        settings.remove(word)  # RUN/best, as `ask` and `export` take it
        if arguments.setdefault("checkpoint", word) != word:
            raise BadInputError(f"checkpoint is given twice: {word} too")
    settings = run_first(settings, "evaluate")
    if arguments:
        from flows.evaluate import choose
        from tasks.evaluate import evaluate_models

        chosen = choose(arguments, settings)
        with _shown(), chosen.published():
            data = chosen.data or generate_dataset(chosen.config)
            evaluated = evaluate_models(chosen.config, data, *chosen.models)
        _show_evaluated(evaluated, [model.name for model in chosen.models])
        return
    config, run = existing_run(settings)
    refuse_unnamed(config, settings, ray=True)
    from rl_core.evaluator import Evaluator
    from tasks.evaluate import evaluate_run, evaluated_of_run
    from tasks.promote import promote_run

    with _shown(), published(config):
        bring_inputs_of_run(config.storage, run)
        data = _data_of(run)
        model = base_of_run(run)
        in_force = settings_in_force(config, run)
        is_own = Evaluator(in_force, data).is_own_of(run)
        summaries = evaluate_run(in_force, run, data, model)
        if is_own:  # `run.json` and the champion are by the run's own settings only
            promote_run(config, run, data, model)
    evaluated = evaluated_of_run(
        in_force, run, data, [summary.model for summary in reversed(summaries)]
    )
    _show_evaluated(evaluated, [answers.name for answers in evaluated.answers])
    if is_own:
        _show_summary(run)
    else:
        say(f"kept next to the run's own evaluation: {run.path / 'run.json'} stays as it is")


def rescore(words: Sequence[str]) -> None:
    """Scores a run's rollouts by a changed reward, and shows how verdicts moved."""
    named = [word for word in words if "=" not in word]
    _, changes = where_and_others([word for word in words if "=" in word])
    if len(named) != 1 or not changes:
        raise BadInputError("rescore takes RUN and what changes: env.answer_from=last_line")
    if strange := [word for word in changes if not word.startswith(("env.", "env="))]:
        raise BadInputError(f"{strange[0]} changes no reward: env.* does")
    config, run = existing_run(run_first(words, "rescore"))
    refuse_unnamed(config, changes)
    from tasks.queries.sql import ask

    with _shown(), published(config):
        bring_inputs_of_run(config.storage, run)
        data = _data_of(run)
        changed = " ".join(word for word in changes if word.startswith("env."))
        rescore_run(config, run, data, changed)
        rows = ask("rescored", {"settings": changed}, root=run.root, run=run.run_id)
    show_rows(rows)


def preflight(overrides: Sequence[str]) -> None:
    """Says what was checked, and fails where something would stop a run."""
    config = compose(overrides)
    card = config.resources.card
    findings = [
        # A card that is only planned for need not be here.
        replace(
            one, level="warning", message=f"{one.message}: planned for resources.card={card} only"
        )
        if card and (one.check, one.level) == ("device", "fatal")
        else one
        for one in checks.preflight(config, unread_settings(config, changed_to(config)))
    ]
    give(findings=findings)
    for finding in findings:
        say(f"{finding.level:8} {finding.check:9} {finding}")
    for finding in findings:
        if finding.overrides:  # on a line of its own, to be copied
            say(f"{'to fit':8} {finding.check:9} {finding.overrides}")
    if any(finding.level == "fatal" for finding in findings):
        raise BadInputError("preflight found what would stop a run")


def sync(overrides: Sequence[str]) -> None:
    """Uploads to wandb what it lacks of a run."""
    run = find_run(run_first(overrides, "sync"))
    try:
        row = sync_run(run.path)
    except ConnectionError as error:
        raise RunFailedError(str(error)) from None
    show_rows([row])
    if row["result"] == "failed":
        raise RunFailedError(f"not uploaded: {run.run_id}")


def _ready(overrides: Sequence[str], look: Callable[[RunConfig], Sequence[Finding]]) -> RunConfig:
    """Returns the settings, if nothing that `look` finds would stop the command."""
    config = compose(overrides)
    checks.refuse_fatal(look(config))
    return config


def _continued(config: RunConfig) -> list[str]:
    """Returns the setting that names the run which a command continues; says so before all else."""
    if config.run_id is not None:
        return []
    bring_records(config.storage)
    run, why = run_to_continue(config)
    if run is None:
        return []
    _logger.info("%s", why)
    return [f"run_id={run.run_id}"]


def _show_evaluated(evaluated: Evaluated, names: Sequence[str]) -> None:
    from flows.evaluate import render

    give(
        models=[
            {**vars(summary), "name": name, "groups": summary.groups}
            for name, summary in zip(names, evaluated.summaries, strict=True)
        ],
        comparison=evaluated.comparison,
        files=list(map(str, evaluated.files)),
        pages=list(map(str, evaluated.pages)),
    )
    say(f"\n{render(evaluated, names)}")


def _data_of(run: RunFolder) -> Path:
    if (data := run.read().data) is None:
        raise BadInputError(f"run {run.run_id} did not get as far as a data set and a base model")
    return Path(data)


@contextmanager
def _shown(*, links: bool = False, trains: bool = False) -> Iterator[None]:
    """Shows progress meanwhile; an error becomes `RunFailedError`, its notes the second line.

    `links` to Prefect's UI are shown: those of a private server lead nowhere. `trains`: preflight
    has checked the settings, so a ValueError is no mistake in them.
    """
    with listening(LineHandler(links=links)):
        try:
            yield
        except (BadInputError, RunFailedError):
            raise
        except OwnFilesError as error:
            raise BadInputError(str(error)) from error
        except Exception as error:
            if type(error) is ValueError and not trains:
                raise BadInputError(one_line(error)) from error
            notes = " ".join(getattr(error, "__notes__", ()))
            raise RunFailedError(f"{one_line(error)}\n{notes}") from error


def _show_summary(run: RunFolder) -> None:
    from flows.runs.summary import summary_lines  # with DuckDB

    say("\n".join(["", *summary_lines(run)]))
