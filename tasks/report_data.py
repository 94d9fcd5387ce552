"""Gathers what a report shows, from the run's folder alone: its records and saved queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rl_core.tracking import RunFolder, RunRecord
from tasks import run_files, sql

_MOST_POINTS = 120
"""Steps of a stacked chart are summed up into at most this many columns."""
_SAMPLES = {"correct": 3}
"""Samples shown of a verdict; of all others `_SAMPLES_OF_OTHERS`."""
_SAMPLES_OF_OTHERS = 1
_LONGEST_SAMPLE = 4_000
"""Characters of a sample's response that are shown, before and after its answer."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """One rollout to read: its response cut in three around the answer."""

    step: int
    verdict: str
    score: float
    prompt: str
    before: str
    answer: str
    after: str
    is_cut: bool


@dataclass(frozen=True)
class ReportData:
    """Everything on the page, as rows of saved queries and plain values."""

    record: RunRecord
    settings: str
    """config.yaml, as it lies."""
    seconds: float | None
    """Wall time of the stages done; before the end of training, up to its last logged step."""
    before: float | None
    """Greedy test accuracy of the base model: of the evaluation, else of the first test."""
    after: float | None
    """The same of the trained model: of the evaluation, else of the last test."""
    base: Row | None
    """The base model's row of `evaluation_summary`; None before the evaluation."""
    trained: Row | None
    """The newest trained model's."""
    gain: Row | None
    curve: pl.DataFrame
    verdicts: pl.DataFrame
    by_num_solutions: list[Row]
    pass_at_k: list[Row]
    evaluation_verdicts: list[Row]
    best_checkpoint: Row | None
    samples: list[Sample]
    stages: list[Row]
    phases: list[Row]
    disk: dict[str, int]


def gather(run: Path) -> ReportData:
    """Returns what there is to report of a run, finished or not.

    Args:
        run: `<storage.root>/runs/<run_id>`.

    Raises:
        ValueError: there is no run at that path.
    """
    record = RunFolder(run).read()
    root = run.parent.parent

    def ask(query: str, **arguments: sql.Value) -> pl.DataFrame:
        return sql.ask(query, arguments, root=root, run=run.name)

    curve = ask("learning_curve")
    steps_per_row = max(1, -(-_last_step(curve) // _MOST_POINTS))
    verdicts = ask("verdict_shares_by_step", steps_per_row=steps_per_row)
    rollout_steps = _last_step(verdicts)
    models = ask("evaluation_summary").to_dicts()
    trained = [row for row in models if row["model"] != "base"][-1:]
    newest = trained[0]["model"] if trained else None
    shown_models = {"base", newest}
    base = next((row for row in models if row["model"] == "base"), None)
    overview = ask("runs_overview").row(0, named=True)
    settings = run / "config.yaml"
    return ReportData(
        record=record,
        settings=settings.read_text(encoding="utf-8") if settings.exists() else "",
        seconds=_seconds(record, overview),
        before=base["accuracy"] if base else overview["accuracy_before"],
        after=trained[0]["accuracy"] if trained else overview["accuracy_after"],
        base=base,
        trained=trained[0] if trained else None,
        gain=_last([row for row in ask("gain_over_base").to_dicts() if row["model"] == newest]),
        curve=curve,
        verdicts=verdicts,
        by_num_solutions=_of_models(ask("accuracy_by_num_solutions"), shown_models),
        pass_at_k=_of_models(ask("pass_at_k"), shown_models),
        evaluation_verdicts=_of_models(ask("evaluation_verdicts"), shown_models),
        best_checkpoint=_last(ask("best_checkpoint").to_dicts()),
        samples=_samples(run, from_step=max(1, rollout_steps - rollout_steps // 5)),
        stages=ask("time_by_stage").to_dicts(),
        phases=ask("time_by_phase").to_dicts(),
        disk=run_files.bytes_by_kind(run),
    )


def _samples(run: Path, *, from_step: int) -> list[Sample]:
    """A few rollouts of each verdict, from the end of training, the most frequent verdict first."""
    root, name = run.parent.parent, run.name
    counts = sql.run_query(
        "select verdict from rollouts where step >= $from_step "
        "group by verdict order by verdict != 'correct', count(*) desc, verdict",
        {"from_step": from_step},
        root=root,
        run=name,
    )
    samples: list[Sample] = []
    for verdict in counts["verdict"]:
        limit = _SAMPLES.get(verdict, _SAMPLES_OF_OTHERS)
        arguments: Row = {"verdict": verdict, "from_step": from_step, "limit": limit}
        rows = sql.ask("samples_of_a_verdict", arguments, root=root, run=name)
        samples += [_as_sample(row) for row in rows.to_dicts()]
    return samples


def _as_sample(row: Row) -> Sample:
    response = row["response"] or ""
    before, answer, after = cut_around_answer(response, row["answer"])
    return Sample(
        step=row["step"],
        verdict=row["verdict"],
        score=row["score"],
        prompt=row["prompt"] or "",
        before=before,
        answer=answer,
        after=after,
        is_cut=len(before) + len(answer) + len(after) < len(response),
    )


def cut_around_answer(response: str, answer: str | None) -> tuple[str, str, str]:
    """Returns what comes before the scored answer, the answer, and what comes after it.

    The answer stands in the last answer tag, else where its text occurs last; without one, all is
    `before`. Of a long response only the part around the answer is returned.
    """
    closing = response.rfind("</answer>")
    opening = response.rfind("<answer>", 0, max(closing, 0))
    found = response.rfind(answer) if answer else -1
    start = end = len(response)
    if answer and opening >= 0:
        start, end = opening + len("<answer>"), closing
    elif answer and found >= 0:
        start, end = found, found + len(answer)
    return (
        response[max(0, start - _LONGEST_SAMPLE) : start],
        response[start:end],
        response[end : end + _LONGEST_SAMPLE],
    )


def _seconds(record: RunRecord, overview: Row) -> float | None:
    if "train" in record.timings_s:
        return sum(record.timings_s.values())  # not the clock: a continued run had nights off
    return None if overview["minutes"] is None else 60 * overview["minutes"]


def _of_models(frame: pl.DataFrame, models: set[str | None]) -> list[Row]:
    return [row for row in frame.to_dicts() if row["model"] in models]


def _last(rows: list[Row]) -> Row | None:
    return rows[-1] if rows else None


def _last_step(frame: pl.DataFrame) -> int:
    return int(frame["step"].max() or 0)  # type: ignore[arg-type]  # an int column, or empty
