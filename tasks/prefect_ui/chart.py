"""One chart as SVG, in the colours of its page, and the learning curve as a picture of four.

By a template of our own: a plotting library takes longer to load than all charts take to draw.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from jinja2 import Environment, StrictUndefined

PALETTE: Final = {
    "ink": "#1b2431",
    "muted": "#66727f",
    "grid": "#dde3eb",
    "train": "#8aa4c8",
    "test": "#0b5fd0",
    "base": "#9aa3af",
    "correct": "#16966b",
    "wrong_value": "#e0a030",
    "wrong_numbers": "#57a9de",
    "bad_syntax": "#b978b4",
    "no_answer": "#b0b7c1",
    "too_long": "#cf5f1f",
    "division_by_zero": "#3f6fb5",
    "incorrect": "#d9b36c",
    "reward_error": "#b3261e",
}
"""Colours on a light page; a drawing refers to them by CSS variables: `--wrong-value`."""
COLOURS: Final = (
    "test",
    "too_long",
    "correct",
    "bad_syntax",
    "wrong_value",
    "wrong_numbers",
    "muted",
)
"""Colours of the series that have none of their own, in this order."""
MOST_POINTS: Final = 160  # of a series: a longer one is drawn as means over several steps each
WIDTH: Final = 440  # of a drawing, in units of its view box: pixels in the Prefect UI
HEIGHT: Final = 270
_LEFT: Final = 58  # of the plot in it; its top leaves room for the legend
_RIGHT: Final = 432
BOTTOM: Final = 228
_LINE: Final = 19  # a line's height, about
_LETTER: Final = 6.7  # a letter's width, about

Point = tuple[float, float]
Look = Literal["line", "bold", "dots", "bars", "area"]
_STROKES: Final[Mapping[Look, str]] = {"line": "1.7", "bold": "2.8", "dots": "2.8"}
_HEAD: Final = 30  # of the learning curve: height of the title, and of each chart's name
_CHARTS: Final = {
    "accuracy": (("reward/accuracy", "training", "train"), ("val/accuracy", "test", "test")),
    "score, partial credit included": (("critic/score/mean", "", "test"),),
    "tokens per response": (("response_length/mean", "", "test"),),
    "KL to the reference, nats per token": (("critic/kl", "", "test"),),
}
"""Metric, name and colour of each line."""


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour (a name of `PALETTE`)."""

    name: str
    colour: str
    points: Sequence[Point]  # finite, sorted by x; all series of a stack have the same x
    look: Look = "line"
    band: Sequence[Point] = ()  # lowest and highest at each point: of an interval, or of an area


def draw(
    series: Sequence[Series],
    y_label: str,
    *,
    x_label: str = "step",
    y_top: float | None = None,
    x_ticks: Mapping[float, str] | None = None,
) -> str | None:
    """Returns the content of an `<svg>` of `WIDTH` by `HEIGHT`; None if there is no point."""
    drawn = [thinned(one) for one in series if one.points]
    if not drawn:
        return None
    at = sorted({x for one in drawn for x, _ in one.points})
    is_area = drawn[0].look == "area"
    marks = _legend(drawn) if len(drawn) > 1 or is_area else []
    low = at[0]
    high = at[-1]
    margin = 0.5 if drawn[0].look == "bars" else (high - low) * 0.04 or 0.5
    x_range = (low, max(high, low + 1)) if is_area else (low - margin, high + margin)
    heights = [y for one in drawn for pair in one.band for y in pair]
    heights += [y for one in drawn if one.look != "area" for _, y in one.points]
    lowest = min(0.0, *heights)
    highest = max(0.0, *heights)
    room = (highest - lowest) * 0.05 or 1.0
    y_range = (lowest - room if lowest < 0 else lowest, highest + room if y_top is None else y_top)
    plot = _Plot(x_range, y_range, top=marks[-1][1] + 18.0 if marks else 12.0)
    if x_ticks is None:
        x_ticks = {x: f"{x:.6g}" for x in ticks(*plot.x, whole=True)}
    chart = _macros().chart(plot, drawn, marks, x_ticks, ticks(*plot.y), x_label, y_label)
    return str(chart).strip()


@cache
def _macros() -> Any:
    """Returns the template's macros: `chart` and `picture`."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["css"] = lambda colour: f"var(--{colour.replace('_', '-')})"
    environment.globals |= {
        "width": WIDTH,
        "height": HEIGHT,
        "letter": _LETTER,
        "left": _LEFT,
        "right": _RIGHT,
        "bottom": BOTTOM,
        "strokes": _STROKES,
    }
    template = Path(__file__).with_name("chart.svg.j2").read_text(encoding="utf-8")
    return environment.from_string(template).module


def stacked(series: Sequence[Series]) -> list[Series]:
    """Returns the series as areas, each on top of those before it."""
    below: Sequence[float] = []
    areas = []
    for one in map(thinned, series):
        below = below or [0.0] * len(one.points)
        above = [low + y for low, (_, y) in zip(below, one.points, strict=True)]
        areas.append(replace(one, look="area", band=list(zip(below, above, strict=True))))
        below = above
    return areas


def thinned(series: Series) -> Series:
    """Returns a series of at most `MOST_POINTS`: means of neighbours, each at the last one's x."""
    span = -(-len(series.points) // MOST_POINTS)
    if span <= 1:
        return series
    groups = [series.points[i : i + span] for i in range(0, len(series.points), span)]
    points = [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
    return replace(series, points=points)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Returns two to six round numbers, whose distance is 1, 2 or 5 times a power of ten."""
    rough = max((high - low) / 5, 1e-12)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [place * step for place in places]


@dataclass(frozen=True)
class _Plot:
    """The ranges of a chart's axes, and the places of its numbers."""

    x: Point
    y: Point  # the range of each axis
    top: float

    def place(self, x: float, y: float) -> Point:
        """Returns a point's place in the view box."""
        right = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(_LEFT + right * (_RIGHT - _LEFT), 1),
            round(BOTTOM - up * (BOTTOM - self.top), 1),
        )

    def places(self, points: Sequence[Point]) -> list[Point]:
        """Returns the places of points."""
        return [self.place(x, y) for x, y in points]

    def edge(self, series: Series) -> list[Point]:
        """Returns the outline of a series' band: its upper edge, and back along the lower one."""
        steps = [x for x, _ in series.points]
        edges = [*zip(steps, series.band, strict=True)]
        if len(steps) == 1:  # an area needs two
            edges.append((steps[0] + 1, series.band[0]))
        upper = [(x, high) for x, (_, high) in edges]
        lower = [(x, low) for x, (low, _) in edges]
        return self.places(upper + lower[::-1])


def _legend(series: Sequence[Series]) -> list[tuple[float, int, Series]]:
    """Returns the places of the series' names, in rows above the plot, where they cover no data."""
    room = (_RIGHT - _LEFT) / (26 + _LETTER * max(len(one.name) for one in series))
    columns = max(1, min(3, int(room), len(series)))
    width = (_RIGHT - _LEFT) / columns
    return [
        (_LEFT + i % columns * width, 17 + i // columns * _LINE, one)
        for i, one in enumerate(series)
    ]


def learning_curve(rows: Sequence[Mapping[str, Any]], title: str) -> str | None:
    """Returns accuracy, score, length and KL of a run's metrics as an SVG data URI, if any."""
    charts: dict[str, str] = {}
    for name, lines in _CHARTS.items():
        series = [Series(words, colour, _points(rows, metric)) for metric, words, colour in lines]
        if chart := draw(series, ""):
            only = [one.name for one in series if one.points]
            charts[f"{name}, {only[0]}" if len(only) < len(series) else name] = chart
    if not charts:
        return None
    colours = {name.replace("_", "-"): colour for name, colour in PALETTE.items()}
    svg = str(_macros().picture(title, charts, _HEAD))
    svg = re.sub(r"var\(--([a-z-]+)\)", lambda match: colours[match[1]], svg)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def as_picture(uri: str | None) -> str | None:
    """Returns the picture as markdown: below an image artifact the UI prints the whole URI."""
    return None if uri is None else f"![accuracy, score, tokens and KL by step]({uri})\n"


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    return [
        (float(row["step"]), float(value))
        for row in rows
        if (value := row.get(metric)) is not None and math.isfinite(value)
    ]
