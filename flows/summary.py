"""The short table at the end of a run: what it reached, where things lie, what to try next."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from rl_core.tracking import RunFolder, RunRecord
from tasks.sql import ask


def show_summary(root: Path, run_id: str) -> None:
    """Prints the table of one run."""
    run = RunFolder(root / "runs" / run_id)
    Console(highlight=False, soft_wrap=True).print(summary_table(run, root))


def summary_table(run: RunFolder, root: Path) -> Table:
    """Returns accuracy before and after, steps, seconds by stage, places and next commands."""
    record = run.read()
    intervals = _intervals(run.run_id, root)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row(f"run {record.run_id}", record.status)
    table.add_row("accuracy before", _accuracy(record.accuracy_before, intervals.get("base")))
    after = next((value for model, value in intervals.items() if model != "base"), None)
    table.add_row("accuracy after", _accuracy(record.accuracy_after, after))
    table.add_row("steps", str(record.steps))
    table.add_row("time", _stages(record))
    table.add_row("data set", str(record.data))
    table.add_row("base model", str(record.model))
    table.add_row("run folder", str(run.path))
    table.add_row("report", str(run.path / "report.html"))
    table.add_row("try next", f"countdown-train sql learning_curve --run {record.run_id}")
    table.add_row("", f"countdown-train sql won_and_lost --run {record.run_id}")
    table.add_row("", "countdown-train run seed=1")
    return table


def _accuracy(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def _stages(record: RunRecord) -> str:
    total = sum(record.timings_s.values())
    parts = " · ".join(f"{name} {seconds:.0f} s" for name, seconds in record.timings_s.items())
    return f"{total / 60:.1f} min: {parts}"


def _intervals(run_id: str, root: Path) -> dict[str, tuple[float, float]]:
    """Returns the 95% interval of each evaluated model's accuracy."""
    rows = ask("evaluation_summary", root=root, run=run_id).to_dicts()
    return {row["model"]: (row["accuracy_low"], row["accuracy_high"]) for row in rows}
