"""Evaluation of any one model, alone or against another: from names to a table of numbers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.prefect_patches.own_settings import ignore_working_folder
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()  # a Prefect worker starts this module without our command line
ignore_working_folder()
hide_cuda_only_packages()

from prefect import flow  # transformers and vLLM come with the tasks below

from flows.errors import BadInputError
from flows.prefect_patches.own_server import obey_own_server_only
from flows.runs.lookup import changed_settings, named_model, refuse_unnamed, settings_of_run
from flows.runs.run_record import prepare_for_flow_runs
from flows.runs.state import heeding_the_server
from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.data.dataset import generator_settings
from rl_core.storage.mirror import mirrored
from tasks.evaluate import Evaluated, evaluate_models_task, measures
from tasks.generate import dataset_task
from tasks.prefect_ui.flow_run import logs_in_ui
from tasks.queries.checkpoint_names import NamedModel
from tasks.queries.render import plain_table
from tasks.report_page.samples import as_table
from tasks.storage import inputs_published

obey_own_server_only()
prepare_for_flow_runs()


@flow(name="evaluate")
def evaluate(
    checkpoint: str = "latest", against: str | None = None, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Asks a model the test problems, and compares it with another that is asked the same.

    Args:
        checkpoint: champion; RUN, RUN/best, RUN/step_000100 or RUN/base, without RUN/ of the latest
            run; a model's folder; or a Hugging Face name.
        against: A second model, named in the same ways, or nothing.
        overrides: KEY=VALUE each; storage.root says where the runs are. A run's model is asked the
            problems of its run under the run's settings, which the others change.

    Returns:
        `models`, of each its name, number of problems, and accuracy with its 95% interval;
        `comparison`, where there are two, and `files`, where the rows lie.
    """
    names = {"checkpoint": checkpoint} | ({"against": against} if against else {})
    with logs_in_ui(), heeding_the_server():
        chosen = choose(names, overrides)
        with chosen.published():
            data = chosen.data or dataset_task(chosen.config)(chosen.config)
            return evaluate_models_task(chosen.config, data, *chosen.models)


@dataclass(frozen=True)
class Chosen:
    """What is evaluated, and how."""

    models: list[NamedModel]  # one, or two that are compared
    config: RunConfig
    data: Path | None  # folder of the data set; None where it is the settings' own

    @contextmanager
    def published(self) -> Iterator[None]:
        """Publishes at the end the rows of the models, also in their runs' folders."""
        with ExitStack() as held:
            held.enter_context(inputs_published(self.config))
            for run_id in dict.fromkeys(m.run.run_id for m in self.models if m.run is not None):
                held.enter_context(mirrored(self.config.storage, run_id))
            yield


def choose(arguments: Mapping[str, str], overrides: Sequence[str]) -> Chosen:
    """Returns the models that `checkpoint` and `against` name, and how they are asked.

    A run's model gets the problems of its run under the run's settings, any other model those of
    the preset; overrides change either. A second model gets what the first one gets.
    """
    if "checkpoint" not in arguments:
        raise BadInputError("against= compares with checkpoint=: name that, too")
    env = next((text.partition("=")[2] for text in overrides if text.startswith("env=")), None)
    names = [arguments[key] for key in ("checkpoint", "against") if key in arguments]
    named = [named_model(name, overrides, env) for name in names]
    models = [one for one, _ in named]
    model, storage = named[0]
    if model.run is None:
        return Chosen(models, compose(overrides), None)
    base = settings_of_run(model.run, storage, overrides)
    config = changed_settings(model.run, overrides, storage)
    refuse_unnamed(config, overrides, ray=True)
    data = model.run.read().data
    ours, its = (generator_settings(one.env, one.data) for one in (config, base))
    is_there = data is not None and Path(data).is_dir()
    return Chosen(models, config, Path(str(data)) if is_there and ours == its else None)


def render(evaluated: Evaluated, names: Sequence[str]) -> str:
    """Returns a table with a row per number and a column per model, the verdict and the files."""
    numbers = [
        measures(summary)
        | {f"{of.label} ({of.num_problems})": str(of.accuracy) for of in summary.groups}
        for summary in evaluated.summaries
    ]
    rows = [[name, *(of_model[name] for of_model in numbers)] for name in numbers[0]]
    lines = [plain_table(["", *names], rows)]
    for answers in evaluated.answers:
        right = f"{answers.num_right} of {answers.summary.num_problems} right"
        right += " at the first try" if answers.summary.num_samples > 1 else ""
        shown = as_table(answers)
        table = plain_table(list(shown[0]), [list(row.values()) for row in shown])
        lines.append(f"{answers.name}: {right}\n{table}")
    if evaluated.comparison is not None:
        lines.append(f"{names[0]} against {names[1]}: {evaluated.comparison}\n")
    lines += [f"rows: {file}" for file in evaluated.files]
    lines += [f"right and wrong answers: {page}" for page in evaluated.pages]
    return "\n".join(lines)
