"""`countdown-train evaluate checkpoint=A [against=B]`: from names to a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flows.errors import BadInputError
from flows.runs.lookup import refuse_unnamed_code, settings_of_run, where_and_others
from flows.settings.compose import compose
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import generator_settings
from rl_core.evaluation.summary import EvaluationSummary
from rl_core.storage.mirror import mirrored
from tasks.evaluate import Evaluated, evaluate_models
from tasks.evaluator import measures
from tasks.generate import generate_dataset
from tasks.queries.checkpoint_names import NamedModel, find_model
from tasks.queries.render import plain_table
from tasks.report_page.samples import Answers, as_table
from tasks.storage import bring_model, inputs_published


@dataclass(frozen=True)
class Chosen:
    """What is evaluated, and how."""

    models: list[NamedModel]
    """One, or the one and the other that it is compared with."""
    config: RunConfig
    data: Path | None
    """Folder of the data set; None where it is the settings' own."""

    @contextmanager
    def published(self) -> Iterator[None]:
        """Publishes what an evaluation leaves in the block: rows of the models, and in their runs.

        Raises:
            ValueError: another machine is at work on one of these runs.
            StoreError: the store does not answer.
        """
        with ExitStack() as held:
            held.enter_context(inputs_published(self.config))
            for run_id in dict.fromkeys(m.run.run_id for m in self.models if m.run is not None):
                held.enter_context(mirrored(self.config.storage, run_id))
            yield


def choose(asked: Mapping[str, str], overrides: Sequence[str]) -> Chosen:
    """Returns the models that `checkpoint` and `against` name, and how they are asked.

    A run's model is asked the problems of its run under the run's settings, any other model those
    of the preset; overrides change either. Both models of a comparison are asked as the first.

    Raises:
        BadInputError: a name means nothing, or `checkpoint` is missing.
        SettingsError: as `compose`.
    """
    if "checkpoint" not in asked:
        raise BadInputError("against= compares with checkpoint=: name that, too")
    where = compose(where_and_others(overrides)[0])
    env = next((text.partition("=")[2] for text in overrides if text.startswith("env=")), None)
    names = [asked[key] for key in ("checkpoint", "against") if key in asked]
    for name in names:
        bring_model(where.storage, name, where.run_id)
    try:
        models = [
            find_model(name, where.storage.root, run_id=where.run_id or "latest", env=env)
            for name in names
        ]
    except ValueError as error:
        raise BadInputError(str(error)) from None
    return Chosen(models, *_settings_and_data(models[0], where.storage, overrides))


def evaluate_chosen(chosen: Chosen) -> str:
    """Evaluates, writes the rows and returns the table."""
    data = chosen.data or generate_dataset(chosen.config)
    evaluated = evaluate_models(chosen.config, data, *chosen.models)
    return render(evaluated, [model.name for model in chosen.models])


def render(evaluated: Evaluated, names: Sequence[str]) -> str:
    """Returns the table: a row per number, a column per model; then the verdict and the files."""
    numbers = [_numbers(summary) for summary in evaluated.summaries]
    rows = [[name, *(of_model[name] for of_model in numbers)] for name in numbers[0]]
    lines = [plain_table(["", *names], rows), *map(_answers, evaluated.answers)]
    if evaluated.comparison is not None:
        lines.append(f"{names[0]} against {names[1]}: {evaluated.comparison}\n")
    lines += [f"rows: {file}" for file in evaluated.files]
    lines += [f"right and wrong answers: {page}" for page in evaluated.pages]
    return "\n".join(lines)


def _answers(answers: Answers) -> str:
    """Returns some right and some wrong answers, a line each."""
    rows = as_table(answers)
    of = f"{answers.num_right} of {answers.summary.num_problems} right"
    table = plain_table(list(rows[0]), [list(row.values()) for row in rows])
    return f"{answers.name}: {of}\n{table}"


def _numbers(summary: EvaluationSummary) -> dict[str, str]:
    groups = {f"{of.label} ({of.num_problems})": str(of.accuracy) for of in summary.groups}
    return measures(summary) | groups


def _settings_and_data(
    model: NamedModel, storage: StorageConfig, overrides: Sequence[str]
) -> tuple[RunConfig, Path | None]:
    arguments = ("checkpoint", "against")
    if model.run is None:
        return compose(overrides, arguments=arguments), None
    base = settings_of_run(model.run, storage.root, url=storage.url, words=overrides)
    changes = [t for t in where_and_others(overrides)[1] if not t.startswith("env=")]
    config = compose(changes, base=base, arguments=arguments)
    refuse_unnamed_code(config, overrides, ray=True)
    data = model.run.read().data
    if data is not None and Path(data).is_dir() and _problems_of(config) == _problems_of(base):
        return config, Path(data)
    return config, None


def _problems_of(config: RunConfig) -> object:
    return generator_settings(config.env, config.data)
