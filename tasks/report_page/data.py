"""Gathers what a report or a comparison shows, from runs' folders: records and saved queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from rl_core.config.operations import protocol_of
from rl_core.evaluation.statistics import wilson_interval
from rl_core.evaluation.summary import accuracy_by
from rl_core.runs.metrics_log import read_rows
from rl_core.runs.run_folder import RunFolder, RunRecord
from rl_core.runs.settings_file import read_settings, settings_text
from rl_core.sft.named_data import CURVE_NAME
from rl_core.tracking.diagnosis import diagnose
from tasks.hours import left_of, steps_in_words
from tasks.queries import run_tables, sql
from tasks.queries.saved_questions import Value
from tasks.report_page.failures import faults, warnings
from tasks.report_page.head import (
    algorithm_in_words,
    answer_pages,
    command_of,
    model_in_words,
)
from tasks.report_page.samples import Row, best_and_worst, from_the_end, samples, won_and_lost

_SEARCH_ROWS = 6
_MOST_POINTS = 120  # of a stacked chart: steps are summed up
_MOST_KINDS = 6  # of files, with their sizes
_TIMELINE = """
select step, metric, value from metrics
where
    starts_with(metric, 'timing_s/') or starts_with(metric, 'memory/host_gib/')
    or starts_with(metric, 'memory/peak_gib/')
order by step, metric
"""
PAIRED = "who won the same problems"


@dataclass(frozen=True)
class ReportData:
    """What is on the page: what its charts draw, and what its templates show, by name."""

    record: RunRecord
    rows: dict[str, list[Row]]  # rows of saved queries, see `_rows`
    decoding: str  # of what counts for accuracy, `EvaluationConfig.protocol`
    curve: pl.DataFrame
    verdicts: pl.DataFrame
    timeline: pl.DataFrame  # step, metric and value of times and memory
    shown: dict[str, Any]  # see `gather`


def gather(run: RunFolder) -> ReportData:
    """Returns what there is to report of a run, finished or not; ValueError if there is none."""
    record = run.read()
    ask = partial(_ask, run)
    curve = ask("learning_curve")
    last_step = int(curve["step"].max() or 0)  # type: ignore[arg-type]  # an int column, or empty
    steps_per_row = max(1, -(-last_step // _MOST_POINTS))
    verdicts = ask("verdict_shares_by_step", steps_per_row=steps_per_row)
    from_step = from_the_end(verdicts)
    settings = read_settings(run.path)
    decoding = protocol_of(settings)
    evaluation = _evaluation(run)
    newest = evaluation["trained"] and evaluation["trained"]["model"]
    rows = _rows(run, models={"base", newest}, from_step=from_step, last=last_step)
    best, worst = best_and_worst(run, from_step=from_step)
    shown = evaluation | {
        "rows": rows,
        "settings": settings_text(run.path),  # unchanged
        "algorithm": algorithm_in_words(run, settings),
        "model": model_in_words(run, record),
        "command": command_of(record),  # that starts such a run; None if the run was imported
        "answer_pages": answer_pages(run, ["base", newest]),
        "changes": won_and_lost(run, newest),
        "steps": steps_in_words(run),  # what a step takes, and what was planned
        "left": left_of(run),  # time and price of the steps that are left, while it trains
        "decoding": decoding,
        "accuracy": accuracy_by(decoding),
        "diagnoses": diagnose(run.metrics.read(), settings=settings),
        "faults": faults(run.path, record),
        "warnings": warnings(run.path),
        "best": best,
        "worst": worst,
        # One of each verdict; like best and worst, from the last steps.
        "samples": samples(run, from_step=from_step),
        "phases": _phases(ask("time_by_phase").to_dicts(), record.timings_s.get("train", 0.0)),
        "disk": _disk(run),
        "receipt": run.receipt.last_audit(record.steps),  # time and lines of the last audit
    }
    timeline = sql.run_query(_TIMELINE, root=run.root, run=run.run_id)
    return ReportData(record, rows, decoding, curve, verdicts, timeline, shown)


def _evaluation(run: RunFolder) -> dict[str, Any]:
    """Returns what is known of base and trained model, and the time that it took."""
    record = run.read()
    ask = partial(_ask, run)
    overview = ask("runs_overview").row(0, named=True)
    seconds = None if overview["minutes"] is None else 60 * overview["minutes"]
    if "train" in record.timings_s:  # not by the clock: a continued run was off between
        seconds = sum(record.timings_s.values())
    models = ask("evaluation_summary").to_dicts()
    base = next((row for row in models if row["model"] == "base"), None)
    trained = _last([row for row in models if row["model"] != "base"])
    before, after = ((row["accuracy"] if row else None) for row in (base, trained))
    newest = trained["model"] if trained else None
    best_checkpoint = _last(ask("best_checkpoint").to_dicts())
    tested = run_tables.num_tested(run.path)
    return {
        "seconds": seconds,  # of the stages done; in training, up to its last logged step
        "price": None if seconds is None else run.price_of(seconds),
        # Test accuracy of base and trained model: from the evaluation, else from first and last
        # test. Never one from each: the tests of training ask fewer problems.
        "before": before if models else overview["val_before"],
        "after": after if models else overview["val_after"],
        # Of the evaluation, None before it:
        "num_problems": models[0]["problems"] if models else None,
        "base": base,
        "trained": trained,
        "gain": _last([row for row in ask("gain_over_base").to_dicts() if row["model"] == newest]),
        "majority": {
            row["model"]: row
            for row in ask("majority_vote").to_dicts()
            if row["samples_per_problem"] > 1  # a single sample holds no vote
        },
        "best_checkpoint": best_checkpoint,
        # Which step is shown and why, if `best` is another:
        "best_elsewhere": _best_elsewhere(record.run_id, trained, best_checkpoint, tested),
        "num_tested": tested,  # problems that a test of training asks, if that is known
    }


def _disk(run: RunFolder) -> dict[str, int]:
    """Returns the bytes of the largest kinds of files, and of the rest."""
    sizes = run_tables.bytes_by_kind(run.path)
    largest = dict(list(sizes.items())[:_MOST_KINDS])
    rest = sum(sizes.values()) - sum(largest.values())
    return largest | ({"the rest": rest} if rest else {})


def _ask(run: RunFolder, query: str, **arguments: Value) -> pl.DataFrame:
    return sql.ask(query, arguments, root=run.root, run=run.run_id)


def _rows(
    run: RunFolder, *, models: set[str | None], from_step: int, last: int
) -> dict[str, list[Row]]:
    """Returns tables that the page shows as they are; one that would say nothing has no rows."""
    ask = partial(_ask, run)

    def of_models(query: str, *, at_least: int = 1) -> list[Row]:
        rows = [row for row in ask(query).to_dicts() if row["model"] in models]
        return [row | _interval_of(row) for row in rows] if len(rows) >= at_least else []

    steps_per_row = max(1, -(-last // _SEARCH_ROWS))
    searches = ask("search_by_step", steps_per_row=steps_per_row).to_dicts()
    solutions = of_models("accuracy_by_num_solutions")
    is_known = any(row["solutions"] != "unknown" for row in solutions)  # in GSM8K it is not
    data = Path(run.read().data or "-").name
    times = ask("time_by_stage").to_dicts()
    return {
        "kept_evaluations": ask("kept_evaluations").to_dicts(),
        "sft": read_rows(run.path / CURVE_NAME),
        "searches": searches if any(row["attempts"] >= 1 for row in searches) else [],
        "turns": ask("turns_by_step", steps_per_row=steps_per_row).to_dicts(),
        "turns_used": ask("accuracy_by_turns", from_step=from_step).to_dicts(),
        "by_num_solutions": solutions if is_known else [],
        # A single row would repeat the headline.
        "by_num_operands": of_models("accuracy_by_operands", at_least=2),
        "by_data_source": of_models("accuracy_by_data_source", at_least=2),
        # For k = 1, 2, 4, ...: all others lie between.
        "pass_at_k": [row for row in of_models("pass_at_k") if row["k"].bit_count() == 1],
        "evaluation_verdicts": of_models("evaluation_verdicts"),
        "stages": [row for row in times if row["attempt"] is None],
        "starts": [row for row in times if row["attempt"] is not None],
        "memory": ask("memory_by_phase").to_dicts(),
        "data_sets": [
            row for row in sql.ask("data_sets", root=run.root).to_dicts() if row["name"] == data
        ],
    }


def _interval_of(row: Row) -> Row:
    """Returns the interval of a row's accuracy as text, if it has one."""
    if "problems" not in row or "accuracy" not in row:
        return {}
    low, high = wilson_interval(row["accuracy"] * row["problems"], row["problems"])
    return {"interval": f"{low:.3f} to {high:.3f}"}


def _phases(phases: list[Row], train_s: float) -> list[Row]:
    """Returns the phases of the steps, and the rest of the stage: Ray, engines, models."""
    if (rest := train_s - sum(row["total_s"] for row in phases)) <= 0:
        return phases
    rows = [*phases, {"phase": "start-up and what no phase counts", "total_s": rest}]
    return [{**row, "share": row["total_s"] / train_s} for row in rows]


def _best_elsewhere(
    run_id: str, trained: Row | None, best: Row | None, tested: int | None
) -> str | None:
    if trained is None or best is None or trained["step"] == best["step"]:
        return None
    on_problems = f" on {tested} problems" if tested else ""
    return (
        f"Accuracy is of the last step ({trained['step']}): choosing the best by its test score "
        f"would overstate it. `best` is step {best['step']}, with a test accuracy of "
        f"{best['accuracy']:.3f}{on_problems} during training; "
        f"`countdown-train evaluate {run_id}/best` measures it on the same "
        f"{trained['problems']} problems."
    )


def _last(rows: list[Row]) -> Row | None:
    return rows[-1] if rows else None


def compare_runs(root: Path, names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """Returns tables by title, of two or more runs (ids or `latest`), else raises ValueError."""
    runs = list({path.name: None for name in names for path in run_tables.find_runs(root, name)})
    if len(runs) < 2:
        raise ValueError("compare takes two or more runs: countdown-train compare RUN RUN")
    ask = partial(sql.ask, root=root, run=runs)  # a damaged file of another run is not read
    lost = ", ".join(name for name in runs if not read_settings(root / "runs" / name))
    settings: dict[str, dict[str, str | None]] = {}
    for row in ask("settings_that_differ").to_dicts():
        values = settings.setdefault(row["key"], {"key": row["key"], **dict.fromkeys(runs)})
        values |= dict.fromkeys(row["run_ids"].split(", "), row["value"])
    return {
        "what they reached": ask("compare_runs"),
        "settings that differ" + (f" (of {lost} they are unknown)" if lost else ""): pl.DataFrame(
            list(settings.values()), dict.fromkeys(["key", *runs], pl.String)
        ),
        PAIRED: ask("compare_models"),
    }
