"""The learning curve as a picture for the Prefect UI: four small charts, drawn while training.

By hand, for it is drawn again and again on a processor that training wants, and a plotting library
is slow at that. The report's charts are in `tasks/report_page/charts.py`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any, Final

_MOST_POINTS: Final = 100
"""Longer lines are drawn through the means of neighbouring steps."""
_WIDTH, _HEIGHT = 440, 210
"""Of a chart, in pixels; its plot leaves room for the numbers around it."""
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 52, 34, 370, 142
_HEAD: Final = 30
_INK, _MUTED, _GRID = "#1b2431", "#66727f", "#dde3eb"

Point = tuple[float, float]


@dataclass(frozen=True)
class _Line:
    metric: str
    name: str
    colour: str


_TRAINING, _TEST = "#8aa4c8", "#0b5fd0"
_CHARTS: Final = {
    "accuracy": (
        _Line("reward/accuracy", "training", _TRAINING),
        _Line("val/accuracy", "test", _TEST),
    ),
    "score, with format credit": (_Line("critic/score/mean", "", _TEST),),
    "tokens per response": (_Line("response_length/mean", "", _TEST),),
    "KL to the reference, nats per response": (_Line("critic/kl", "", _TEST),),
}


def learning_curve(rows: Sequence[Mapping[str, Any]], title: str) -> str | None:
    """Returns accuracy, score, length and KL over steps as an SVG data URI.

    Args:
        rows: `step` and metrics, as in `metrics.jsonl`, by ascending steps.
        title: stands above the charts.

    Returns:
        None where there is nothing to draw yet.
    """
    charts: list[str] = []
    for name, lines in _CHARTS.items():
        drawn = {line: points for line in lines if (points := _points(rows, line.metric))}
        if drawn:
            x, y = len(charts) % 2 * _WIDTH, _HEAD + len(charts) // 2 * _HEIGHT
            charts.append(f'<g transform="translate({x} {y})">{_chart(name, drawn)}</g>')
    if not charts:
        return None
    width, height = 2 * _WIDTH, _HEAD + math.ceil(len(charts) / 2) * _HEIGHT
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f"{_text(_LEFT, 21, title, size=14)}{''.join(charts)}</svg>"
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers, evenly spaced, from `low` or below to `high` or above: three to six.

    Their distance is 1, 2 or 5 times a power of ten.
    """
    if high <= low:
        high = low + 1
    rough = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Point]:
    """Returns a metric by step, thinned out; without what is no number."""
    known = [
        (float(row["step"]), float(value))
        for row in rows
        if (value := row.get(metric)) is not None and math.isfinite(value)
    ]
    size = math.ceil(len(known) / _MOST_POINTS)
    groups = [known[i : i + size] for i in range(0, len(known), size or 1)]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def _chart(name: str, lines: dict[_Line, list[Point]]) -> str:
    all_points = [point for points in lines.values() for point in points]
    x_ticks = ticks(0, max(x for x, _ in all_points))
    y_ticks = ticks(min(0.0, *(y for _, y in all_points)), max(y for _, y in all_points))
    parts = [_text(_LEFT, _TOP - 12, name, size=12)]
    legend_x = _LEFT + _PLOT_WIDTH
    for line in reversed(lines):
        parts.append(_text(legend_x, _TOP - 12, line.name, colour=line.colour, anchor="end"))
        legend_x -= 10 + 6 * len(line.name)
    for y in y_ticks:
        at = _place((0, y), x_ticks, y_ticks)[1]
        parts.append(f'<path d="M{_LEFT} {at}h{_PLOT_WIDTH}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 6, at + 4, f"{y:.6g}", colour=_MUTED, anchor="end"))
    for x in x_ticks:
        at = _place((x, y_ticks[0]), x_ticks, y_ticks)[0]
        below = _TOP + _PLOT_HEIGHT + 15
        parts.append(_text(at, below, f"{x:.6g}", colour=_MUTED, anchor="middle"))
    for line, points in lines.items():
        places = [_place(point, x_ticks, y_ticks) for point in points]
        path = " ".join(f"{x},{y}" for x, y in places)
        style = f'fill="none" stroke="{line.colour}" stroke-width="1.8"'
        parts.append(f'<polyline points="{path}" {style}/>')
        x, y = places[-1]
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{line.colour}"/>')
    return "".join(parts)


def _place(point: Point, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> Point:
    """Returns where a point lies in its chart, in pixels from the upper left."""
    x = (point[0] - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
    y = (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
    return round(_LEFT + x * _PLOT_WIDTH, 1), round(_TOP + (1 - y) * _PLOT_HEIGHT, 1)


def _text(
    x: float, y: float, text: str, *, size: int = 11, colour: str = _INK, anchor: str = "start"
) -> str:
    place = f'x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"
