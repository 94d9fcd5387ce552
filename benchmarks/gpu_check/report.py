"""Rows of a check: JSON lines as they come, and one Markdown table at the end. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

PARTS = {
    "a": "learner's step beside the CPU's",
    "b": "log-prob op",
    "c": "memory plan",
    "d": "the diary's settings in 24 GiB",
    "e": "step time",
    "f": "snapshot",
    "g": "generation",
    "h": "a preset in 24 GiB",
    "i": "adapters' memory plan",
    "j": "larger micro-batches",
    "k": "vLLM's memory",
    "l": "float16",
}
WHOLE = "whole part"
"""The row that ends a part, however the part ended."""
_VERDICTS = {True: "ok", False: "NOT OK", None: ""}


@dataclass(frozen=True)
class Row:
    """One thing that was checked."""

    check: str
    ok: bool | None
    """None if numbers are only reported, not judged."""
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""
    """What was allowed, why it was left out, or the error."""
    is_case: bool = False
    """One of many that another row sums up: in the table only if it is not ok."""


Line = dict[str, object]
Part = Callable[[], Iterable[Row]]


def append(file: Path, line: Mapping[str, object]) -> None:
    """Writes a line of JSON, at once."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, default=str) + "\n")


def read(file: Path) -> list[Line]:
    """Returns all lines, of which the last may have been cut."""
    lines: list[Line] = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def run_part(name: str, part: Part, file: Path) -> bool:
    """Appends a part's rows as they come, and how it ended; returns whether all of it is ok."""
    start, ok, note = perf_counter(), True, ""
    try:
        for row in part():
            append(file, {"part": name, **asdict(row)})
            ok &= row.ok is not False
    except Exception as error:  # noqa: BLE001  # an error of one part must not end the others
        message = (str(error).strip().splitlines() or [""])[0]
        ok, note = False, f"{type(error).__name__}: {message}"
    end_part(name, file, ok=ok, note=note, seconds=perf_counter() - start)
    return ok


def end_part(name: str, file: Path, *, ok: bool, note: str, seconds: float) -> None:
    """Appends the row that ends a part."""
    row = Row(WHOLE, ok, {"seconds": round(seconds, 1)}, note)
    append(file, {"part": name, **asdict(row)})


def unfinished(parts: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """Returns the parts that have no final row."""
    ended = {line.get("part") for line in lines if line.get("check") == WHOLE}
    return [part for part in parts if part not in ended]


def table(lines: Sequence[Line]) -> str:
    """Returns all lines as Markdown: the machine, then a row per check."""
    machine = next((line for line in lines if "part" not in line), {})
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join([facts, "", *_rows([line for line in lines if "part" in line])])


def _rows(lines: Sequence[Line]) -> Iterator[str]:
    yield "| part | check | | measured | |"
    yield "|---|---|---|---|---|"
    for line in lines:
        if line["is_case"] and line["ok"] is not False:
            continue
        numbers = line["numbers"]
        assert isinstance(numbers, dict)
        measured = ", ".join(f"{name} {_short(value)}" for name, value in numbers.items())
        part = f"{line['part']}: {PARTS.get(str(line['part']), '')}"
        cells = (part, line["check"], _VERDICTS[line["ok"]], measured, line["note"])
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _short(value: float | str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
