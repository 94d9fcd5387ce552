"""Several runs beside one another: what they reached, what differs, who won which problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.diagnosis import diagnose
from rl_core.tracking.series import Diagnosis
from tasks.queries.run_tables import find_runs
from tasks.queries.sql import ask


@dataclass(frozen=True)
class Comparison:
    """Rows of saved questions about the chosen runs alone."""

    run_ids: list[str]
    """In the order in which they were named."""
    overview: pl.DataFrame
    """One row per run, the best first: `compare_runs`."""
    settings: pl.DataFrame
    """One row per setting that differs, one column per run: null where it has no such setting."""
    paired: pl.DataFrame
    """One row per two models that answered the same problems: `compare_models`."""
    curves: dict[str, pl.DataFrame]
    """`learning_curve` by run."""
    diagnoses: dict[str, list[Diagnosis]]


def compare_runs(root: Path, names: Sequence[str]) -> Comparison:
    """Returns the comparison of some runs, named by their ids or `latest`.

    Raises:
        ValueError: there is no such run, or fewer than two are named.
    """
    folders = {path.name: path for name in names for path in find_runs(root, name)}
    if len(folders) < 2:
        raise ValueError("compare takes two or more runs: countdown-train compare RUN RUN")
    runs = list(folders)
    chosen = pl.col("run_id").is_in(runs)
    models = ask("compare_models", root=root)
    return Comparison(
        run_ids=runs,
        overview=ask("compare_runs", root=root).filter(chosen),
        settings=_settings(root, runs),
        paired=models.filter(chosen & pl.col("other_run_id").is_in(runs)),
        curves={run: ask("learning_curve", root=root, run=run) for run in runs},
        diagnoses={run: diagnose(RunFolder(folders[run]).metrics.read()) for run in runs},
    )


def _settings(root: Path, runs: Sequence[str]) -> pl.DataFrame:
    rows = ask("settings_that_differ", {"runs": ",".join(runs)}, root=root).to_dicts()
    by_key: dict[str, dict[str, str | None]] = {}
    for row in rows:
        values = by_key.setdefault(row["key"], dict.fromkeys(runs))
        values |= dict.fromkeys(row["run_ids"].split(", "), row["value"])
    schema = dict.fromkeys(["key", *runs], pl.String)
    return pl.DataFrame([{"key": key, **values} for key, values in by_key.items()], schema)
