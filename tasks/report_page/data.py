"""Gathers what a report shows, from the run's folder alone: its records and saved queries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rl_core.runs.resume import remarks
from rl_core.runs.run_folder import RunFolder, RunRecord
from rl_core.runs.settings_file import read_settings
from rl_core.sft.named_data import CURVE_NAME
from rl_core.tracking.diagnosis import diagnose
from rl_core.tracking.series import Diagnosis
from tasks.hours import left_of, steps_in_words
from tasks.queries import run_tables as run_files
from tasks.queries import sql
from tasks.queries.saved_questions import Value
from tasks.report_page.faults import Fault, LoggedWarning, faults, warnings
from tasks.report_page.samples import Sample, Story, best_and_worst, from_the_end, samples, stories

_SEARCH_ROWS = 6
_MOST_POINTS = 120
"""Steps of a stacked chart are summed up into at most this many columns."""
_MOST_KINDS = 6
"""Of files, with their sizes."""
_TIMELINE = """
select step, metric, value from metrics
where
    starts_with(metric, 'timing_s/') or starts_with(metric, 'memory/host_gib/')
    or starts_with(metric, 'memory/peak_gib/') or metric = 'disk/free_gib'
    or starts_with(metric, 'rollout/staleness_')
order by step, metric
"""
_NUM_TESTED = "select count(distinct prompt_index) from held_out"

Row = dict[str, Any]


@dataclass(frozen=True)
class ReportData:
    """Everything on the page, as rows of saved queries and plain values."""

    record: RunRecord
    settings: str
    """config.yaml, as it lies."""
    seconds: float | None
    """Wall time of the stages done; before the end of training, up to its last logged step."""
    price: str | None
    """Of that time, where the settings name one."""
    steps: str | None
    """What a step takes, beside what was planned."""
    left: str | None
    """Time and price of the steps that are left, while it trains."""
    before: float | None
    """Greedy test accuracy of the base model: of the evaluation, else of the first test."""
    after: float | None
    """The same of the trained model: of the evaluation, else of the last test. Never one of each:
    the tests of training ask fewer problems."""
    num_problems: int | None
    """That both models were asked; None before the evaluation."""
    base: Row | None
    """The base model's row of `evaluation_summary`; None before the evaluation."""
    trained: Row | None
    """The newest trained model's."""
    gain: Row | None
    kept_evaluations: list[Row]
    """Rows of `kept_evaluations`: the one that all numbers here are of, and others beside it."""
    diagnoses: list[Diagnosis]
    """What is wrong with the run, the gravest first."""
    sft: list[Row]
    """Step, loss and held-out loss of fine-tuning before the run, if there was one."""
    curve: pl.DataFrame
    verdicts: pl.DataFrame
    steps_per_row: int
    """Of `verdicts`."""
    searches: list[Row]
    """Rows of `search_by_step`; empty where responses are no searches of the home-made model's."""
    turns: list[Row]
    """Rows of `turns_by_step`; empty where the env answers nothing."""
    turns_used: list[Row]
    """Rows of `accuracy_by_turns`, from the end of training."""
    timeline: pl.DataFrame
    """Step, metric and value of times, memory and disk."""
    by_num_solutions: list[Row]
    by_num_operands: list[Row]
    """Empty where all problems have as many numbers."""
    by_data_source: list[Row]
    """Empty where all problems are of one task."""
    pass_at_k: list[Row]
    """For k = 1, 2, 4, ...: all others lie between."""
    majority: dict[str, Row]
    """Rows of `majority_vote` by model."""
    evaluation_verdicts: list[Row]
    best_checkpoint: Row | None
    best_elsewhere: str | None
    """Which step the numbers of the trained model are of, and why, where `best` is another."""
    num_tested: int
    """Problems that a test of training asks; 0 where no answers were kept."""
    checkpoint_remarks: list[str]
    """A sentence on each checkpoint that cannot be resumed from."""
    faults: list[Fault]
    warnings: list[LoggedWarning]
    stories: list[Story]
    best: list[Sample]
    worst: list[Sample]
    samples: list[Sample]
    """One of each verdict, from the end of training, as are `best` and `worst`."""
    stages: list[Row]
    phases: list[Row]
    memory: list[Row]
    """Rows of `memory_by_phase`."""
    disk: dict[str, int]
    data_sets: list[Row]
    """The splits that the run read, as far as they are still there."""


def gather(run: RunFolder) -> ReportData:
    """Returns what there is to report of a run, finished or not.

    Raises:
        ValueError: there is no such run.
    """
    record = run.read()

    def ask(query: str, **arguments: Value) -> pl.DataFrame:
        return sql.ask(query, arguments, root=run.root, run=run.run_id)

    curve = ask("learning_curve")
    steps_per_row = max(1, -(-_last_step(curve) // _MOST_POINTS))
    steps_of_few = max(1, -(-_last_step(curve) // _SEARCH_ROWS))
    verdicts = ask("verdict_shares_by_step", steps_per_row=steps_per_row)
    from_step = from_the_end(verdicts)
    models = ask("evaluation_summary").to_dicts()
    trained = [row for row in models if row["model"] != "base"][-1:]
    newest = trained[0]["model"] if trained else None
    shown_models = {"base", newest}
    base = next((row for row in models if row["model"] == "base"), None)
    overview = ask("runs_overview").row(0, named=True)
    settings = run.path / "config.yaml"
    seconds = _seconds(record, overview)
    best, worst = best_and_worst(run, from_step=from_step)
    best_checkpoint = _last(ask("best_checkpoint").to_dicts())
    tested = sql.run_query(_NUM_TESTED, root=run.root, run=run.run_id).item()
    return ReportData(
        record=record,
        settings=settings.read_text(encoding="utf-8") if settings.exists() else "",
        seconds=seconds,
        price=None if seconds is None else run.price_of(seconds),
        steps=steps_in_words(run),
        left=left_of(run) if record.status == "running" else None,
        before=_accuracy(base) if models else overview["val_before"],
        after=_accuracy(_last(trained)) if models else overview["val_after"],
        num_problems=models[0]["problems"] if models else None,
        kept_evaluations=ask("kept_evaluations").to_dicts(),
        base=base,
        trained=trained[0] if trained else None,
        gain=_last([row for row in ask("gain_over_base").to_dicts() if row["model"] == newest]),
        diagnoses=diagnose(run.metrics.read(), settings=read_settings(run.path)),
        sft=_sft(run.path),
        curve=curve,
        verdicts=verdicts,
        steps_per_row=steps_per_row,
        searches=ask("search_by_step", steps_per_row=steps_of_few).to_dicts(),
        turns=ask("turns_by_step", steps_per_row=steps_of_few).to_dicts(),
        turns_used=ask("accuracy_by_turns", from_step=from_step).to_dicts(),
        timeline=sql.run_query(_TIMELINE, root=run.root, run=run.run_id),
        by_num_solutions=_labelled(_of_models(ask("accuracy_by_num_solutions"), shown_models)),
        by_num_operands=_several(_of_models(ask("accuracy_by_operands"), shown_models)),
        by_data_source=_several(_of_models(ask("accuracy_by_data_source"), shown_models)),
        pass_at_k=[
            row for row in _of_models(ask("pass_at_k"), shown_models) if row["k"].bit_count() == 1
        ],
        majority={row["model"]: row for row in ask("majority_vote").to_dicts()},
        evaluation_verdicts=_of_models(ask("evaluation_verdicts"), shown_models),
        best_checkpoint=best_checkpoint,
        best_elsewhere=_best_elsewhere(record.run_id, _last(trained), best_checkpoint, tested),
        num_tested=tested,
        checkpoint_remarks=remarks(run.path),
        faults=faults(run.path, record),
        warnings=warnings(run.path),
        stories=stories(run),
        best=best,
        worst=worst,
        samples=samples(run, from_step=from_step),
        stages=ask("time_by_stage").to_dicts(),
        phases=_with_start_up(ask("time_by_phase").to_dicts(), record.timings_s.get("train")),
        memory=ask("memory_by_phase").to_dicts(),
        disk=_largest(run_files.bytes_by_kind(run.path)),
        data_sets=_data_sets(run.root, record),
    )


def _with_start_up(phases: list[Row], train_s: float | None) -> list[Row]:
    """Returns the phases of the steps, and what else the stage took: Ray, engines, models."""
    rest = (train_s or 0.0) - sum(row["total_s"] for row in phases)
    if train_s is None or rest <= 0:
        return phases
    rows = [*phases, {"phase": "start-up and what no phase counts", "total_s": rest}]
    return [{**row, "share": row["total_s"] / train_s} for row in rows]


def _sft(run: Path) -> list[Row]:
    file = run / CURVE_NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _best_elsewhere(run_id: str, trained: Row | None, best: Row | None, tested: int) -> str | None:
    if trained is None or best is None or trained["step"] == best["step"]:
        return None
    asked = f" on {tested} problems" if tested else ""
    return (
        f"The trained model is step {trained['step']}, the last: one chosen by its result would "
        f"look better than it is. `best` is step {best['step']}, with a test accuracy of "
        f"{best['accuracy']:.3f}{asked} during training; `countdown-train evaluate {run_id}/best` "
        f"measures it on the same {trained['problems']} problems."
    )


def _accuracy(row: Row | None) -> float | None:
    return row["accuracy"] if row else None


def _seconds(record: RunRecord, overview: Row) -> float | None:
    if "train" in record.timings_s:
        return sum(record.timings_s.values())  # not the clock: a continued run had nights off
    return None if overview["minutes"] is None else 60 * overview["minutes"]


def _of_models(frame: pl.DataFrame, models: set[str | None]) -> list[Row]:
    return [row for row in frame.to_dicts() if row["model"] in models]


def _labelled(rows: list[Row]) -> list[Row]:
    """Returns no rows where no problem says how many solutions it has, as in GSM8K."""
    return [] if all(row["solutions"] == "unknown" for row in rows) else rows


def _largest(sizes: dict[str, int]) -> dict[str, int]:
    """Returns a few of the sizes, largest first as they were, and the sum of all others."""
    shown = dict(list(sizes.items())[:_MOST_KINDS])
    rest = sum(sizes.values()) - sum(shown.values())
    return shown | ({"the rest": rest} if rest else {})


def _several(rows: list[Row]) -> list[Row]:
    """Returns no rows where there is but one: it would repeat the headline."""
    return rows if len(rows) > 1 else []


def _data_sets(root: Path, record: RunRecord) -> list[Row]:
    if record.data is None:
        return []
    rows = sql.ask("data_sets", root=root).to_dicts()
    return [row for row in rows if row["name"] == Path(record.data).name]


def _last(rows: list[Row]) -> Row | None:
    return rows[-1] if rows else None


def _last_step(frame: pl.DataFrame) -> int:
    return int(frame["step"].max() or 0)  # type: ignore[arg-type]  # an int column, or empty
