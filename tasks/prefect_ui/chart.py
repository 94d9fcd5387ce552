"""One chart as SVG, in the colours of its page, and the learning curve as a picture of four.

By hand: a plotting library takes longer to load than all charts take to draw.
"""

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Final, Literal

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
WIDTH, HEIGHT = 440, 270  # of a drawing, in units of its view box: pixels in the Prefect UI
_LEFT, _RIGHT, BOTTOM = 58, 432, 228  # of the plot in it; its top leaves room for the legend
_LINE, _LETTER = 19, 6.7  # a line's height and a letter's width, about

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
    legend, rows = _legend(drawn) if len(drawn) > 1 or is_area else ([], 0)
    top = 12.0 + (4 + _LINE * rows if rows else 0)
    low, high = at[0], at[-1]
    margin = 0.5 if drawn[0].look == "bars" else (high - low) * 0.04 or 0.5
    x_range = (low, max(high, low + 1)) if is_area else (low - margin, high + margin)
    heights = [y for one in drawn for pair in one.band for y in pair]
    heights += [y for one in drawn if one.look != "area" for _, y in one.points]
    lowest, highest = min(0.0, *heights), max(0.0, *heights)
    room = (highest - lowest) * 0.05 or 1.0
    y_range = (lowest - room if lowest < 0 else lowest, highest + room if y_top is None else y_top)
    plot = _Plot(x_range, y_range, top)
    if x_ticks is None:
        x_ticks = {x: f"{x:.6g}" for x in ticks(*plot.x, whole=True)}
    parts = [
        *legend,
        *_frame(plot, x_ticks, x_label, y_label),
        *(shape for i, one in enumerate(drawn) for shape in _shapes(plot, one, i, len(drawn))),
    ]
    return "".join(parts)


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
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def text(
    x: float, y: float, words: str, *, colour: str = "muted", anchor: str = "start", more: str = ""
) -> str:
    """Returns words in a drawing; `anchor` says whether x is their start, middle or end."""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}'
    return f'<text {place} style="fill:{_css(colour)}">{escape(words)}</text>'


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


def _frame(plot: _Plot, x_ticks: Mapping[float, str], x_label: str, y_label: str) -> Iterable[str]:
    line = f'style="stroke:{_css("grid")}"'
    for y in ticks(*plot.y):
        at = plot.place(0, y)[1]
        yield f'<path d="M{_LEFT} {at}H{_RIGHT}" {line}/>'
        yield text(_LEFT - 6, at + 4, f"{y:.6g}", anchor="end")
    for x, words in x_ticks.items():
        at = plot.place(x, plot.y[0])[0]
        yield f'<path d="M{at} {plot.top:g}V{BOTTOM}" {line}/>'
        # An area has no margin after its last step: the label of that step is moved inwards.
        inside = min(at, WIDTH - _LETTER * len(words) / 2)
        yield text(inside, BOTTOM + 17, words, anchor="middle", more=' class="x"')
    middle = (plot.top + BOTTOM) / 2
    yield text((_LEFT + _RIGHT) / 2, HEIGHT - 6, x_label, anchor="middle")
    turned = f' transform="rotate(-90 13 {middle:g})"'
    yield text(13, middle, y_label, anchor="middle", more=turned)


def _legend(series: Sequence[Series]) -> tuple[list[str], int]:
    """Returns names above the plot, where they cover no data, and the number of their rows."""
    room = (_RIGHT - _LEFT) / (26 + _LETTER * max(len(one.name) for one in series))
    columns = max(1, min(3, int(room), len(series)))
    marks: list[str] = []
    for i, one in enumerate(series):
        row, column = divmod(i, columns)
        x, y = _LEFT + column * (_RIGHT - _LEFT) / columns, 17 + row * _LINE
        mark = f'<path d="M{x:g} {y - 4:g}h14" style="stroke:{_css(one.colour)};stroke-width:'
        mark += f'{_STROKES.get(one.look, "9")}"/>'
        marks += [mark, text(x + 20, y, one.name, colour="ink")]
    return marks, row + 1


def _shapes(plot: _Plot, series: Series, index: int, count: int) -> Iterable[str]:
    colour = _css(series.colour)
    steps = [x for x, _ in series.points]
    if series.look == "bars":
        width = 0.76 / count
        for x, y in series.points:
            left, top = plot.place(x - 0.38 + index * width, y)
            right, _ = plot.place(x - 0.38 + (index + 1) * width, y)
            box = f'x="{left}" y="{top}" width="{right - left:.1f}" height="{BOTTOM - top:.1f}"'
            yield f'<rect {box} style="fill:{colour}"/>'
        return
    if series.band:
        band = list(series.band)
        if len(steps) == 1:  # an area needs two
            steps = [*steps, steps[0] + 1]
            band = band * 2
        edge = [plot.place(x, high) for x, (_, high) in zip(steps, band, strict=True)]
        edge += reversed([plot.place(x, low) for x, (low, _) in zip(steps, band, strict=True)])
        opacity = "1" if series.look == "area" else "0.2"
        yield f'<polygon points="{_joined(edge)}" style="fill:{colour};fill-opacity:{opacity}"/>'
    if series.look != "area":
        places = [plot.place(x, y) for x, y in series.points]
        style = f"fill:none;stroke:{colour};stroke-width:{_STROKES[series.look]}"
        yield f'<polyline points="{_joined(places)}" style="{style}"/>'
        if series.look == "dots" or len(places) == 1:
            for x, y in places:
                yield f'<circle cx="{x}" cy="{y}" r="3.5" style="fill:{colour}"/>'


def _joined(places: Iterable[Point]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _css(colour: str) -> str:
    return f"var(--{colour.replace('_', '-')})"


def learning_curve(rows: Sequence[Mapping[str, Any]], title: str) -> str | None:
    """Returns accuracy, score, length and KL of a run's metrics as an SVG data URI, if any."""
    drawings: list[str] = []
    for name, lines in _CHARTS.items():
        series = [Series(words, colour, _points(rows, metric)) for metric, words, colour in lines]
        if chart := draw(series, ""):
            x = len(drawings) % 2 * WIDTH
            y = _HEAD + len(drawings) // 2 * (_HEAD + HEIGHT)
            only = [one.name for one in series if one.points]
            words = f"{name}, {only[0]}" if only != [one.name for one in series] else name
            named = text(WIDTH / 2, 20, words, colour="ink", anchor="middle")
            drawing = f'<g transform="translate(0 {_HEAD})">{chart}</g>'
            drawings.append(f'<g transform="translate({x} {y})">{named}{drawing}</g>')
    if not drawings:
        return None
    width, height = 2 * WIDTH, _HEAD + math.ceil(len(drawings) / 2) * (_HEAD + HEIGHT)
    head = text(12, 21, title, colour="ink", more=' font-size="15"')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f"{head}{''.join(drawings)}</svg>"
    )
    colours = {name.replace("_", "-"): colour for name, colour in PALETTE.items()}
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
