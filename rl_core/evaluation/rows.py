"""An EVALUATION ROW (stage 9): a response to a held-out problem, its verdicts, and its file.

Each problem is answered once greedily (accuracy) and n times sampled (pass@k), or only sampled
(both). Engines, decoding and scoring come in as functions: nothing here loads a model.

    eval/step_000100.parquet                         with the run's own settings
    eval/100-problems-1a2b3c4d/step_000100.parquet   with others: fewer problems, say

An evaluation is a set of problems and settings for any model; `evaluation` is its name. All files
of a folder belong to one evaluation: they can be compared, and none replaces another evaluation's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.config.operations import EvaluationConfig
from rl_core.schema import EVALUATION
from rl_core.system.atomic import locked, new_file
from rl_core.system.plain_parquet import open_parquet, read_table
from rl_core.system.seeds import seed_of
from rl_core.types import Completion, GenerationRequest, Problem, ScoredText, Turn

if TYPE_CHECKING:
    from rl_core.types import PromptedProblem

Generate = Callable[[Sequence[GenerationRequest], str, Sequence[Problem]], list[Completion]]
"""(requests, `greedy` or `sampled`, their problems) -> whole responses in order, turns included."""
Score = Callable[[str, Any], ScoredText]
"""(response, ground truth) -> verdict."""
UNKNOWN: Final = "unknown"
"""The evaluation of a file that cannot be read."""
PAGE: Final = ".html"
"""Suffix of the page that shows some of the answers, next to their rows."""


def evaluate_model(
    generate: Generate,
    problems: Sequence[PromptedProblem],
    *,
    decode: Callable[[Sequence[int]], str],
    score: Callable[[str, Problem, Sequence[Turn]], Future[ScoredText]],
    other_scores: Mapping[str, Score],
    settings: EvaluationConfig,
) -> list[dict[str, Any]]:
    """Returns one row per response: each problem once greedily, then n times sampled.

    With `decoding=sampled` there are only the sampled ones.

    Rows have the columns of `rl_core.schema.EVALUATION` that follow `step`; `label_rows` adds the
    others. Sampling seeds depend only on (seed, problem, sample): every model has the same ones,
    and a problem's rows do not depend on the other problems.

    `score` gives the verdict that counts: all responses of a mode are submitted before the first
    result is awaited. Verdicts of `other_scores` go to the columns that are their names.
    """
    samples = range(settings.samples_per_problem)
    modes = {"greedy": [(item, 0) for item in problems]} if settings.decoding == "greedy" else {}
    modes["sampled"] = [(item, i) for item in problems for i in samples]
    rows = []
    for mode, questions in modes.items():
        requests = [
            GenerationRequest(
                item.prompt_ids,
                seed_of(settings.seed, item.problem.index, sample),
                problem=item.problem.index,
            )
            for item, sample in questions
        ]
        completions = generate(requests, mode, [item.problem for item, _ in questions])
        texts = [decode(completion.response_ids.tolist()) for completion in completions]
        pending = [
            score(text, item.problem, completion.turns)
            for text, completion, (item, _) in zip(texts, completions, questions, strict=True)
        ]
        for (item, sample), completion, text, scored in zip(
            questions, completions, texts, pending, strict=True
        ):
            problem = item.problem
            truth = problem.ground_truth
            has_numbers = isinstance(truth, Mapping) and "numbers" in truth
            columns = asdict(scored.result())
            del columns["rewards"], columns["why"]  # the rows of training have them
            rows.append(
                {
                    "prompt_index": problem.index,
                    "data_source": problem.data_source,
                    "num_solutions": problem.num_solutions,
                    "mode": mode,
                    "sample_index": sample,
                    "prompt": item.prompt_text,
                    "num_operands": len(truth["numbers"]) if has_numbers else None,
                    "ground_truth": json.dumps(truth, sort_keys=True, ensure_ascii=False),
                    "response": text,
                    "response_tokens": len(completion.response_ids),
                    "finish_reason": completion.finish_reason,
                }
                | {name: other(text, truth).verdict for name, other in other_scores.items()}
                | columns
            )
    return rows


def label_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    run_id: str,
    model: str,
    step: int,
    evaluation: str | None = None,
    num_problems: int | None = None,
) -> list[dict[str, Any]]:
    """Returns complete rows of one model (`base`, `step_000100`).

    `run_id` is empty for a model of no run; `evaluation` is None for a test during training.
    """
    labels = {"run_id": run_id, "model": model, "step": step}
    labels |= {"evaluation": evaluation, "num_problems": num_problems}
    return [dict(row) | labels for row in rows]


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes complete rows as parquet, whole or not at all."""
    with new_file(file) as temporary:
        pq.write_table(
            pa.Table.from_pylist(list(rows), schema=EVALUATION), temporary, compression="zstd"
        )


def read_rows(file: Path, *, below: Path | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a file of `write_rows`, as `open_parquet` reads it."""
    rows: list[dict[str, Any]] = read_table(file, EVALUATION, below=below).to_pylist()
    return rows


@dataclass(frozen=True)
class EvaluationFiles:
    """`eval/` of a run."""

    folder: Path

    def write(self, rows: Sequence[Mapping[str, Any]], *, is_own: bool) -> Path:
        """Writes complete rows of one model, and returns the file.

        Only rows of the same model and evaluation are replaced: if another evaluation is in the
        place of the run's own, its files are moved to their own folder first.
        """
        model = str(rows[0]["model"])
        evaluation = str(rows[0]["evaluation"])
        with locked(self.folder):
            is_own = is_own or evaluation == self.own()
            place = self.folder / f"{model}.parquet"
            other = self._beside(evaluation, model)
            final, elsewhere = (place, other) if is_own else (other, place)
            with new_file(final) as temporary:
                table = pa.Table.from_pylist(list(rows), schema=EVALUATION)
                pq.write_table(table, temporary, compression="zstd")
                if is_own:
                    self._make_way(evaluation)
            if elsewhere.exists() and evaluation_of(elsewhere) == evaluation:
                elsewhere.unlink()
                elsewhere.with_suffix(PAGE).unlink(missing_ok=True)
        return final

    def find(self, model: str, evaluation: str) -> Path | None:
        """Returns the file of a model's rows, or None."""
        place = self.folder / f"{model}.parquet"
        if place.exists() and evaluation_of(place) == evaluation:
            return place
        other = self._beside(evaluation, model)
        return other if other.exists() else None

    def own(self) -> str | None:
        """Returns the evaluation that is in the place of the run's own; None if it is empty."""
        return next((evaluation_of(file) for file in self._own_files()), None)

    def _make_way(self, evaluation: str) -> None:
        """Moves rows of other evaluations, and their pages, out of the place of the run's own."""
        for file in list(self._own_files()):
            if (other := evaluation_of(file)) == evaluation:
                continue
            free = self._beside(other, file.stem)
            free.parent.mkdir(exist_ok=True)
            file.rename(free)
            page = file.with_suffix(PAGE)
            if page.exists():
                page.rename(free.with_suffix(PAGE))

    def _own_files(self) -> Iterator[Path]:
        return (file for file in sorted(self.folder.glob("*.parquet")) if file.name[0] != ".")

    def _beside(self, evaluation: str, model: str) -> Path:
        return self.folder / evaluation / f"{model}.parquet"


def evaluation_of(file: Path) -> str:
    """Returns the evaluation that a file's rows belong to."""
    try:
        with open_parquet(file) as rows:
            first = next(rows.iter_batches(1, columns=["evaluation"]))
            return str(first.column(0)[0])
    except (OSError, ValueError, LookupError, StopIteration):
        return UNKNOWN
