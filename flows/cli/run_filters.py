"""The filters of `countdown-train runs`: status, preset, when, and any setting of a run."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, get_args

import polars as pl

from flows.errors import BadInputError
from rl_core.runs.run_folder import RunRecord
from rl_core.system.words import did_you_mean
from tasks.queries.sql import run_query

OF_RUNS: Final = ("status", "preset", "env", "since", "note")
"""What runs are filtered by, besides settings."""
_WHERE: Final = ("run_id", "storage.root", "storage.url")
_STATUSES: Final = (*get_args(RunRecord.model_fields["status"].annotation), "unreadable")
_AGO: Final = re.compile(r"(\d{1,5})([hdw])")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}


def filters_and_others(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the filters by key, and the words that say where runs are; refuses a wrong filter."""
    filters: dict[str, str] = {}
    others = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in _WHERE:
            others.append(word)
        elif key in filters:
            raise BadInputError(f"{key} is given twice: {word!r} too (one may be a,b)")
        else:
            _check(key, value)
            filters[key] = value
    return filters, others


def matching(runs: pl.DataFrame, filters: Mapping[str, str], root: Path) -> pl.DataFrame:
    """Returns the rows of `runs_overview` that match all filters; `a,b` matches either."""
    for key, value in filters.items():
        match key:
            case "since":
                matches = pl.col("started_at") >= _since(value)
            case "note":
                notes = pl.col("note").str.to_lowercase()
                matches = notes.str.contains(value.lower(), literal=True)
            case "status" | "preset":
                matches = pl.col(key).is_in(value.split(","))
            case _:
                matches = pl.col("run_id").is_in(_having(key, value, root))
        runs = runs.filter(matches)
    return runs


def _having(key: str, value: str, root: Path) -> list[str]:
    """Returns the runs of which a setting has a value, or one of several."""
    select = "select run_id, value from settings where key = $key"
    setting = "env.name" if key == "env" else key
    rows = run_query(select, {"key": setting}, root=root).rows()
    like = {_plain(value), *map(_plain, value.split(","))}
    return [run_id for run_id, its in rows if _plain(its) in like]


def _check(key: str, value: str) -> None:
    if not value.strip():
        raise BadInputError(f"{key}= needs a value")
    if key == "status":
        for status in value.split(","):
            if status not in _STATUSES:
                hint = did_you_mean(status, _STATUSES)
                there = ", ".join(_STATUSES)
                raise BadInputError(f"status={status} is no status{hint} (there are: {there})")
    elif key == "since":
        _since(value)
    elif key not in OF_RUNS:
        from flows.settings.keys import check_key  # with all settings

        check_key(key, OF_RUNS)


def _since(text: str) -> datetime:
    """Returns the time that `7d`, `12h`, `2026-11-28` or `2026-11-28T22:00` stands for."""
    if ago := _AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise BadInputError(
            f"since={text} is no time: write 7d, 12h, 2w, 2026-11-28 or 2026-11-28T22:00"
        ) from None


def _plain(value: str) -> object:
    """Returns a setting's value so that 1e-6 equals 1e-06, and [a,b] equals ['a', 'b']."""
    try:
        return float(value)
    except ValueError:
        return re.sub(r"[\s'\"]", "", value).lower()
