"""One chart: static SVG by matplotlib, in colours that a page can replace, and what a hover says.

Each colour of `PALETTE` is one hexadecimal code that occurs nowhere else, so `themed` can turn it
into a CSS variable (light and dark page) while a chart on its own keeps the light colours. The
words of a hover are written here; `templates/hover.js` only finds the nearest.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

PALETTE = {
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
}
COLOURS = ("test", "too_long", "correct", "bad_syntax", "wrong_value", "wrong_numbers", "muted")
"""Of series that have no meaning in common, in this order."""
MOST_POINTS = 160
"""Of a series: a longer one is drawn as means of as many steps as it takes."""
_SIZE_IN = (4.4, 2.7)
_POINTS_PER_INCH = 72
"""Of matplotlib's SVG, whose view box is in points."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "countdown-train",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": PALETTE["ink"],
    "axes.facecolor": "none",
    "axes.edgecolor": PALETTE["grid"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 0.7,
    "xtick.color": PALETTE["grid"],
    "ytick.color": PALETTE["grid"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "legend.frameon": False,
    "legend.fontsize": 9,
}

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """What is drawn in one colour."""

    name: str
    """In the legend and in a hover's words."""
    colour: str
    """A name of `PALETTE`."""
    points: Sequence[Point]
    """Finite, by x; a stack's have the same x in every series."""
    look: Literal["line", "bold", "dots", "dashes"] = "line"
    span: int = 1
    """Steps that each point is the mean of."""


@dataclass(frozen=True)
class Chart:
    """A chart and what a pointer on it finds."""

    svg: str
    x: list[float] = field(default_factory=list)
    """Where there is something to say, in the view box's units, ascending."""
    says: list[str] = field(default_factory=list)
    """What, at each x: `step 12: train 0.25 · test 0.5 (step 10)`."""
    top: float = 0.0
    bottom: float = 0.0
    """Of the drawing, in the view box's units."""
    at_rest: str = ""
    """What stands there while nobody points: the end of a curve."""

    @property
    def hover(self) -> str:
        """As JSON, for the page's script."""
        at = {"x": self.x, "says": self.says, "top": self.top, "bottom": self.bottom}
        return json.dumps(at, separators=(",", ":"), ensure_ascii=False)


def line_chart(
    series: Sequence[Series],
    y_label: str,
    *,
    legend_columns: int = 2,
) -> Chart | None:
    """Returns lines over steps, None without a point; from 0 upwards where nothing is negative."""
    drawn = [thinned(one) for one in series if one.points]
    if not drawn:
        return None
    with mpl.rc_context(_STYLE):
        figure, axes = new_figure(y_label)
        for one in drawn:
            axes.plot(*zip(*one.points, strict=True), label=one.name, **_LOOKS[one.look](one))
        heights = [y for one in drawn for _, y in one.points]
        if min(heights) >= 0:
            axes.set_ylim(0, 1.05 * max(heights) or 1)
        if len(drawn) > 1:
            legend(figure, axes, columns=legend_columns)
            figure.subplots_adjust(top=0.82)
        return finish(figure, axes, drawn, unit="step")


def stacked_chart(
    series: Sequence[Series], y_label: str, *, top: float | None = None
) -> Chart | None:
    """Returns areas on top of one another over steps, None without a point.

    Args:
        series: from below, all at the same steps.
        y_label: what the areas measure.
        top: of the y axis.
    """
    drawn = [thinned(one) for one in series if one.points]
    if not drawn:
        return None
    with mpl.rc_context(_STYLE):
        figure, axes = new_figure(y_label)
        steps = [x for x, _ in drawn[0].points]
        heights = [[y for _, y in one.points] for one in drawn]
        if len(steps) == 1:  # an area needs two
            steps, heights = [*steps, steps[0] + 1], [[h[0], h[0]] for h in heights]
        colours = [PALETTE[one.colour] for one in drawn]
        labels = [one.name for one in drawn]
        axes.stackplot(steps, *heights, colors=colours, labels=labels, lw=0)
        axes.set_ylim(0, top)
        axes.margins(x=0)
        legend(figure, axes, columns=3)
        return finish(figure, axes, drawn, unit="step", skip_zeros=True)


def thinned(series: Series) -> Series:
    """Returns a series of at most `MOST_POINTS`: means of so many neighbours, each at its last."""
    span = -(-len(series.points) // MOST_POINTS)
    if span <= 1:
        return series
    groups = [series.points[i : i + span] for i in range(0, len(series.points), span)]
    points = [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
    return replace(series, points=points, span=span * series.span)


def smoothed(series: Series, *, colour: str) -> Series | None:
    """Returns the rolling mean of a long series over a tenth of it, None of a short one."""
    if len(series.points) < 20:
        return None
    window = len(series.points) // 10 + 1
    values = pl.Series([y for _, y in series.points])
    mean = values.rolling_mean(window, min_samples=1, center=True)
    points = [(x, float(y)) for (x, _), y in zip(series.points, mean, strict=True)]
    return Series(f"mean of {window}", colour, points, "bold")


def new_figure(y_label: str, *, x_label: str = "step") -> tuple[Figure, Axes]:
    """Returns an empty drawing; `finish` it within the same style."""
    # Not a constrained layout: that takes as long as the drawing, and aligns no two charts.
    figure = Figure(figsize=_SIZE_IN, dpi=_POINTS_PER_INCH)
    figure.subplots_adjust(left=0.14, right=0.985, bottom=0.17, top=0.97)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return figure, axes


def styled() -> Any:
    """Returns the context in which a drawing is made and finished."""
    return mpl.rc_context(_STYLE)


def legend(figure: Figure, axes: Axes, *, columns: int = 2) -> None:
    """A legend above the plot, where it covers no data."""
    num_labels = len(axes.get_legend_handles_labels()[1])
    rows = -(-num_labels // columns)
    figure.subplots_adjust(top=0.97 - 0.072 * rows)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=min(columns, num_labels),
        borderaxespad=0.2,
        columnspacing=1,
        handlelength=1.2,
        handletextpad=0.5,
    )


def finish(
    figure: Figure,
    axes: Axes,
    series: Sequence[Series],
    *,
    unit: str,
    labels: Sequence[str] | None = None,
    skip_zeros: bool = False,
) -> Chart:
    """Returns the drawing as a chart, the same bytes for the same figure.

    Args:
        figure: drawn.
        axes: its only ones.
        series: what was drawn, as it was drawn.
        unit: of x in words, `step`.
        labels: what to call each x of the first series, in place of its number.
        skip_zeros: a hover leaves out what is 0.
    """
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(buffer, format="svg", metadata=metadata, facecolor="none")
    text = buffer.getvalue()
    height = _SIZE_IN[1] * _POINTS_PER_INCH
    box = axes.get_window_extent()
    at = sorted({x for one in series for x, _ in one.points})
    names = dict(zip(at, labels or [f"{unit} {x:g}" for x in at], strict=True))
    says = [_say(x, names, series, skip_zeros=skip_zeros) for x in at]
    return Chart(
        svg=text[text.index("<svg") :],
        x=[round(float(axes.transData.transform((x, 0))[0]), 1) for x in at],
        says=says,
        at_rest="" if labels else says[-1],
        top=round(height - float(box.y1), 1),
        bottom=round(height - float(box.y0), 1),
    )


def themed(svg: str, title: str) -> str:
    """Returns an SVG for a page: named, colours as CSS variables, sized by its container."""
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name.replace('_', '-')})")
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)


def _say(
    x: float, names: Mapping[float, str], series: Sequence[Series], *, skip_zeros: bool
) -> str:
    """Returns what each series is at x, or was before; means are called so."""
    words, mixed = [], len({one.span for one in series}) > 1
    for one in series:
        known = [point for point in one.points if point[0] <= x]
        if not known or (skip_zeros and known[-1][1] == 0):
            continue
        place, value = known[-1]
        earlier = f" ({names[place]})" if place != x else ""
        own_mean = _mean_of(one.span) if mixed else ""
        words.append(f"{one.name} {value:.4g}{earlier}{own_mean}")
    mean = "" if mixed else _mean_of(series[0].span)
    return f"{names[x]}{mean}: {' · '.join(words)}"


def _mean_of(span: int) -> str:
    return f", mean of {span}" if span > 1 else ""


_LOOKS: dict[str, Any] = {
    "line": lambda one: {"color": PALETTE[one.colour], "lw": 1.2},
    "bold": lambda one: {"color": PALETTE[one.colour], "lw": 2},
    "dots": lambda one: {"color": PALETTE[one.colour], "lw": 2, "marker": "o", "ms": 4},
    "dashes": lambda one: {"color": PALETTE[one.colour], "lw": 1.5, "linestyle": "--"},
}
