"""Evaluate: base model and trained model answer the test split, in one session of the engines."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from prefect import task
from prefect.artifacts import create_table_artifact

from rl_core.checkpoints import latest
from rl_core.collection import PromptedProblem
from rl_core.config import RunConfig
from rl_core.dataset import read_problems
from rl_core.envs.scoring import score
from rl_core.evaluation import (
    Estimate,
    EvaluationSummary,
    evaluate_model,
    label_rows,
    read_rows,
    summarise,
    write_rows,
)
from rl_core.prompts import encode_prompt, load_tokenizer
from rl_core.tracking import RunFolder
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from rl_core.workers import Workers

EVALUATION_VERSION: Final = 1
"""Part of the cache key: raise it when the same model would get other rows."""
_logger = logging.getLogger(__name__)


class Engines(Protocol):
    """What an evaluation needs of `Workers`."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request, in their order."""

    def load_weights(self, folder: Path) -> None:
        """Gives the engines the weights of a saved model of the same architecture."""


def evaluate_run(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates base model and latest checkpoint, and returns a summary of each.

    The latest, not the best: `best` was chosen on these very problems, so its accuracy is too rosy.
    See `evaluate_with` for what is written.

    Args:
        config: the run's settings.
        run: the run whose latest checkpoint is evaluated.
        data: folder of the data set.
        model_path: folder of the base model.
    """
    with Workers.start(
        config,
        model_path,
        learner=False,
        log_folder=run.path / "workers",
        report=_logger.info,
    ) as workers:
        return evaluate_with(workers, config, run, data, model_path)


def evaluate_with(
    engines: Engines, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates both models with engines that hold the base model's weights.

    Writes `eval/base.parquet` and `eval/step_000100.parquet`, and `accuracy_before` and
    `accuracy_after` in `run.json`. The base model's rows are kept beside the runs as well: the next
    run from the same model, problems and settings reads them.
    """
    evaluate = _evaluator(engines, config, data, model_path)
    cached = config.storage.root / "evaluations" / f"base-{_base_key(config, data, model_path)}"
    cached = cached.with_suffix(".parquet")
    if not cached.exists():
        write_rows(label_rows(evaluate(), run_id="", model="base", step=0), cached)
    else:
        _logger.info("the base model was evaluated before: %s", cached)
    before = _record(run, read_rows(cached), model="base", step=0)
    run.update(accuracy_before=before.accuracy.value)
    checkpoint = latest(run.path)
    if checkpoint is None:
        _logger.warning("%s has no checkpoint: only the base model was evaluated", run.run_id)
        return [before]
    engines.load_weights(checkpoint.path)
    after = _record(run, evaluate(), model=checkpoint.path.name, step=checkpoint.step)
    run.update(accuracy_after=after.accuracy.value)
    return [before, after]


@task(name="evaluate", task_run_name="evaluate base and trained model")
def evaluate_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> None:
    """Evaluates in a flow run; table artifacts compare the models, also by difficulty."""
    summaries = evaluate_run(config, run, data, model_path)
    create_table_artifact(
        summary_table(summaries),
        key="evaluation",
        description=f"{run.run_id} on the test split, with 95% intervals.",
    )
    create_table_artifact(
        difficulty_table(summaries),
        key="evaluation-by-difficulty",
        description="Greedy accuracy by the number of solutions that a problem has.",
    )


def summary_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per model, as people read it."""
    return [
        {
            "model": summary.model,
            "problems": summary.num_problems,
            "accuracy": _with_interval(summary.accuracy),
            "score": f"{summary.score_mean:.3f}",
            "format": f"{summary.format_share:.3f}",
            **{f"pass@{k}": _with_interval(value) for k, value in summary.pass_at_k.items()},
            "tokens": f"{summary.response_tokens_mean:.1f}",
        }
        for summary in summaries
    ]


def difficulty_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per number of solutions, a column per model (all saw the same problems)."""
    return [
        {"solutions": buckets[0].label, "problems": buckets[0].num_problems}
        | {
            summary.model: _with_interval(bucket.accuracy)
            for summary, bucket in zip(summaries, buckets, strict=True)
        }
        for buckets in zip(*(summary.by_num_solutions for summary in summaries), strict=True)
    ]


def _evaluator(
    engines: Engines, config: RunConfig, data: Path, model_path: Path
) -> Callable[[], list[dict[str, Any]]]:
    """Returns a function that evaluates whatever weights the engines hold."""
    tokenizer = load_tokenizer(str(model_path))

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    chat = config.env.prompt_template == "chat"
    problems = read_problems(data / "test.parquet")[: config.evaluation.max_problems]
    return partial(
        evaluate_model,
        engines.generate,
        [
            PromptedProblem(p, *encode_prompt(p.messages, tokenizer, chat_template=chat))
            for p in problems
        ],
        decode=decode,
        score=partial(score, config.env),
        max_tokens=config.data.max_response_length,
        samples_per_problem=config.evaluation.samples_per_problem,
        temperature=config.evaluation.temperature,
        seed=config.evaluation.seed,
    )


def _record(
    run: RunFolder, rows: Sequence[dict[str, Any]], *, model: str, step: int
) -> EvaluationSummary:
    """Writes one model's rows into the run's folder and returns their summary."""
    labelled = label_rows(rows, run_id=run.run_id, model=model, step=step)
    write_rows(labelled, run.path / "eval" / f"{model}.parquet")
    summary = summarise(labelled)
    _logger.info(
        "%s: greedy accuracy %s on %d problems",
        model,
        _with_interval(summary.accuracy),
        summary.num_problems,
    )
    return summary


def _base_key(config: RunConfig, data: Path, model_path: Path) -> str:
    """Returns a digest of all that the base model's rows depend on."""
    facts = {
        "version": EVALUATION_VERSION,
        "env": config.env.model_dump(mode="json"),
        "evaluation": config.evaluation.model_dump(mode="json"),
        "max_response_length": config.data.max_response_length,
        "engine": config.rollout.engine,
        "dtype": config.model.dtype,
        "problems": _fingerprint([data / "test.parquet"]),
        "model": _fingerprint(path for path in model_path.iterdir() if path.is_file()),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Returns what changes when a file is written anew; hashing gigabytes would take longer."""
    return sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files)


def _with_interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
