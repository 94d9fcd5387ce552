"""Evaluate: base model and trained model answer the test split, in one session of the engines."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow.parquet as pq
from prefect import task

from rl_core.atomic import is_disk_full
from rl_core.champion import champion_file, read_champion
from rl_core.checkpoints import list_checkpoints, reading_latest, reading_sound
from rl_core.collection import PromptedProblem
from rl_core.config import RunConfig
from rl_core.dataset import read_problems
from rl_core.envs.scoring import score, strict_and_lenient
from rl_core.evaluation import evaluate_model, label_rows, read_rows, write_rows
from rl_core.evaluation_summary import EvaluationSummary, summarise
from rl_core.full_disk import write_unless_full
from rl_core.manifest import model_digest
from rl_core.prompts import encode_prompt, load_tokenizer
from rl_core.reserve import demand_room
from rl_core.rewards import start_rewards
from rl_core.tracking import RunFolder
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings
from rl_core.workers import Workers
from tasks.artifacts import create_table_artifact
from tasks.finished import once_per_training
from tasks.supervision import call_supervised

if TYPE_CHECKING:
    from tasks.child import Channel

EVALUATION_VERSION: Final = 2
"""Part of the cache key: raise it when the same model would get other rows."""
GROUPS: Final = "Greedy accuracy by how many numbers and how many solutions a problem has."
"""What the table of `group_table` shows."""
_TOKENIZER: Final = "tokenizer.json"
_logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]


class Engines(Protocol):
    """What an evaluation needs of `Workers`."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request, in their order."""

    def load_weights(self, folder: Path) -> None:
        """Gives the engines the weights of a saved model of the same architecture."""


@dataclass(frozen=True)
class Evaluator:
    """Asks models the test problems of one data set, under the settings of one run.

    A model's rows are kept under `<storage.root>/evaluations`, by a digest of all that they depend
    on: whoever asks the same again reads them.
    """

    config: RunConfig
    data: Path
    """Folder of the data set."""
    run: RunFolder | None = None
    """The run that asks: what its reserve gave up is not for rows."""

    @cached_property
    def problems(self) -> list[Problem]:
        """All problems of the test split."""
        return read_problems(self.data / "test.parquet")

    @cached_property
    def problem_set(self) -> str:
        """A digest of all test problems: what is asked, and what is right."""
        asked = [(problem.messages, problem.ground_truth) for problem in self.problems]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the model that rows depend on."""
        return {
            "version": EVALUATION_VERSION,
            "env": self.config.env.model_dump(mode="json"),
            "evaluation": self.config.evaluation.model_dump(mode="json"),
            "max_response_length": self.config.data.max_response_length,
            "engine": self.config.rollout.engine,
            "dtype": self.config.model.dtype,
            "problems": self.problem_set,
        }

    def rows_file(self, name: str, model: Path) -> Path:
        """Returns where the rows of a model lie, there or not.

        Args:
            name: the model's, for people.
            model: its folder.
        """
        facts = {"settings": self.settings, "model": model_digest(model)}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        return self.config.storage.root / "evaluations" / f"{name}-{digest}.parquet"

    @property
    def may_reuse(self) -> bool:
        """Whether known rows are those of today: a user's own reward may have been changed."""
        return self.config.env.reward is None

    def known_rows(self, name: str, model: Path) -> Rows | None:
        """Returns a model's rows, if it was asked before."""
        file = self.rows_file(name, model)
        if not file.exists():
            return None
        _logger.info("%s was evaluated before: %s", name, file)
        return read_rows(file)

    def ask(self, engines: Engines, name: str, model: Path) -> Rows:
        """Returns the rows of the model whose weights the engines hold, and keeps them.

        A full disk costs the keeping and a warning.

        Args:
            engines: with the weights of `model`.
            name: the model's.
            model: its folder, of which the tokenizer is used.
        """
        tokenizer = load_tokenizer(str(model))

        def decode(ids: Sequence[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=True))

        env, evaluation = self.config.env, self.config.evaluation
        chat = env.prompt_template == "chat"
        strict, lenient = strict_and_lenient(env)
        with start_rewards(env) as rewards:
            rows = evaluate_model(
                engines.generate,
                [
                    PromptedProblem(p, *encode_prompt(p.messages, tokenizer, chat_template=chat))
                    for p in self.problems[: evaluation.max_problems]
                ],
                decode=decode,
                score=rewards.submit,
                score_strictly=partial(score, strict),
                score_leniently=partial(score, lenient),
                max_tokens=self.config.data.max_response_length,
                samples_per_problem=evaluation.samples_per_problem,
                temperature=evaluation.temperature,
                seed=evaluation.seed,
            )
        rows = label_rows(rows, run_id="", model=name, step=0)
        try:
            if self.run is not None:
                demand_room(self.run.path)
            write_rows(rows, self.rows_file(name, model))
        except OSError as error:
            if not is_disk_full(error):
                raise
            _logger.warning("the rows of %s are not kept for the next who asks: %s", name, error)
        return rows


def evaluate_run(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates base model and latest checkpoint, and returns a summary of each.

    In a watched process, as training. The latest checkpoint, not the best: `best` was chosen on
    these very problems, so its accuracy is too rosy. See `evaluate_with` for what is written.

    Args:
        config: the run's settings.
        run: the run whose latest checkpoint is evaluated; what its evaluator prints is in
            `workers/evaluator.log`.
        data: folder of the data set.
        model_path: folder of the base model.

    Raises:
        WorkerDied: the evaluator was killed, or one of its workers was.
        Stalled: nothing moved for `watchdog.stall_s`.
    """
    summaries = call_supervised(
        evaluate_for_parent,
        {"config": config, "run": run, "data": data, "model_path": model_path},
        name="evaluator",
        log_folder=run.path / "workers",
        stall_s=config.watchdog.stall_s,
        logger=_logger,
    )
    return summaries or []


def evaluate_for_parent(
    channel: Channel, *, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates with engines of its own, in a process whose parent hears of it."""
    with Workers.start(
        config,
        model_path,
        learner=False,
        log_folder=run.path / "workers",
        report=_logger.info,
        on_progress=channel.progress,
    ) as workers:
        return evaluate_with(workers, config, run, data, model_path)


def evaluate_with(
    engines: Engines, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates both models with engines that hold the base model's weights.

    Writes `eval/base.parquet` and `eval/step_000100.parquet`, and `accuracy_before` and
    `accuracy_after` in `run.json`. The champion of these problems is asked too where its rows under
    these settings are missing, so that the checkpoint can be compared with it.
    """
    evaluator = Evaluator(config, data, run)

    def asked(name: str, folder: Path, load: Callable[[], None]) -> Rows:
        rows = evaluator.known_rows(name, folder) if evaluator.may_reuse else None
        if rows is None:
            load()
            rows = evaluator.ask(engines, name, folder)
        return rows

    rows = asked("base", model_path, lambda: None)
    before = record_rows(run, rows, model="base", step=0)
    run.update(accuracy_before=before.accuracy.value)
    with reading_latest(run.path, to_resume=False) as checkpoint:
        if checkpoint is None:
            _logger.warning("%s has no checkpoint: only the base model was evaluated", run.run_id)
            return [before]
        path = checkpoint.path
        rows = asked(checkpoint_name(path), path, lambda: engines.load_weights(path))
    after = record_rows(run, rows, model=path.name, step=checkpoint.step)
    run.update(accuracy_after=after.accuracy.value)
    _ask_champion(evaluator, engines, model_path)
    return [before, after]


def checkpoint_name(checkpoint: Path) -> str:
    """Returns the name under which a run's checkpoint is evaluated: run and step."""
    return f"{checkpoint.parent.parent.name}-{checkpoint.name}"


def record_rows(run: RunFolder, rows: Rows, *, model: str, step: int) -> EvaluationSummary:
    """Writes one model's rows into the run's folder and returns their summary.

    A full disk costs the file, and the run's reason says so.
    """
    labelled = label_rows(rows, run_id=run.run_id, model=model, step=step)
    file = run.path / "eval" / f"{model}.parquet"
    write_unless_full(
        run,
        f"eval/{file.name}",
        partial(write_rows, labelled, file),
        remedy=f"`countdown-train evaluate run_id={run.run_id}` writes it",
    )
    summary = summarise(labelled)
    _logger.info(
        "%s: greedy accuracy %s on %d problems", model, summary.accuracy, summary.num_problems
    )
    return summary


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    newest = max(list_checkpoints(parameters["run"].path), key=lambda c: c.step, default=None)
    models = f"base and {newest.path.name}" if newest else "the base model"
    try:
        num_problems = pq.read_metadata(parameters["data"] / "test.parquet").num_rows
    except (OSError, ValueError):  # the task itself says so
        return f"evaluate {models}"
    asked = min(num_problems, config.evaluation.max_problems or num_problems)
    return f"evaluate {models} on {asked:,} problems"


@task(
    name="evaluate",
    task_run_name=_run_name,  # type: ignore[arg-type]  # a plain function does
    persist_result=True,
    result_serializer="json",
    cache_key_fn=once_per_training,
)
def evaluate_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> None:
    """Evaluates in a flow run; table artifacts compare the models, also by difficulty."""
    summaries = evaluate_run(config, run, data, model_path)
    create_table_artifact(
        summary_table(summaries),
        key="evaluation",
        description=(
            f"{run.run_id} on the test split, with 95% intervals. accuracy: solved greedily, as "
            "scored in training; strict and lenient: by the strictest and the kindest reading of "
            "an answer; pass@k: one of k samples is right; maj@k: their majority is."
        ),
    )
    create_table_artifact(
        group_table(summaries),
        key="evaluation-by-difficulty",
        description=GROUPS,
    )


def summary_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per model, as people read it."""
    return [
        {
            "model": summary.model,
            "problems": summary.num_problems,
            "accuracy": str(summary.accuracy),
            "strict": str(summary.accuracy_strict),
            "lenient": str(summary.accuracy_lenient),
            "score": str(summary.score),
            "format": str(summary.format_share),
            "tokens": f"{summary.response_tokens.value:.1f}",
            **{f"pass@{k}": str(value) for k, value in summary.pass_at_k.items()},
            **{f"maj@{k}": str(value) for k, value in summary.majority_at_k.items()},
        }
        for summary in summaries
    ]


def group_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per group of problems, a column per model (all saw the same problems)."""
    return [
        {"problems": groups[0].label, "number": groups[0].num_problems}
        | {
            summary.model: str(group.accuracy)
            for summary, group in zip(summaries, groups, strict=True)
        }
        for groups in zip(
            *(summary.by_num_operands + summary.by_difficulty for summary in summaries),
            strict=True,
        )
    ]


def _ask_champion(evaluator: Evaluator, engines: Engines, model_path: Path) -> None:
    """Evaluates the champion of these problems, unless it was asked before or cannot be."""
    root = evaluator.config.storage.root
    champion = read_champion(champion_file(root, evaluator.config.env.name, evaluator.problem_set))
    if champion is None or not champion.is_there(root):
        return
    folder = root / champion.current.checkpoint
    known = evaluator.known_rows(checkpoint_name(folder), folder)
    if known is not None and evaluator.may_reuse:
        return
    name = champion.current.name
    if (folder / _TOKENIZER).read_bytes() != (model_path / _TOKENIZER).read_bytes():
        _logger.warning("the champion %s has another tokenizer: it is not evaluated anew", name)
        return
    with ExitStack() as held:
        try:
            held.enter_context(reading_sound(folder))
            engines.load_weights(folder)
        except (FileNotFoundError, ValueError) as error:
            _logger.warning("the champion %s cannot be evaluated anew: %s", name, error)
            return
        evaluator.ask(engines, checkpoint_name(folder), folder)
