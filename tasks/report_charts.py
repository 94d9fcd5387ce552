"""Draws a report's charts as static SVG text, in colours that a page can replace.

Each colour of `PALETTE` is one hexadecimal code that occurs nowhere else, so `themed` can turn it
into a CSS variable (light and dark page) while a chart on its own keeps the light colours.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tasks.report_data import ReportData, Row

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
_SIZE_IN = (4.4, 2.7)
_STYLE: Any = {
    "svg.fonttype": "none",
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


def charts(data: ReportData) -> dict[str, str]:
    """Returns the charts there is something to draw for: title to themed SVG."""
    curve = data.curve
    with mpl.rc_context(_STYLE):
        drawn = {
            "Accuracy": _accuracy(curve),
            "What became of the responses": _verdicts(data.verdicts),
            "Score, with format credit": _line(curve, "score", "score per response"),
            "Response length": _line(curve, "response_tokens", "tokens per response"),
            "KL to the reference": _line(curve, "kl", "nats per response"),
            "Entropy": _line(curve, "entropy", "nats per token"),
            "Accuracy by number of solutions": _by_num_solutions(data.by_num_solutions),
            "pass@k": _pass_at_k(data.pass_at_k),
        }
    return {title: themed(svg) for title, svg in drawn.items() if svg}


def learning_curve_uri(data: ReportData) -> str | None:
    """Returns accuracy over steps as an SVG data URI in light colours, None without a step."""
    with mpl.rc_context(_STYLE):
        svg = _accuracy(data.curve, background="white", title=f"accuracy of {data.record.run_id}")
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" if svg else None


def themed(svg: str) -> str:
    """Returns an SVG for a page: colours as CSS variables, sized by its container."""
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name.replace('_', '-')})")
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    return re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)


def _accuracy(curve: pl.DataFrame, *, background: str | None = None, title: str = "") -> str | None:
    train, test = _points(curve, "accuracy"), _points(curve, "test_accuracy")
    if not train and not test:
        return None
    figure, axes = _figure("share solved")
    if train:
        axes.plot(*zip(*train, strict=True), color=PALETTE["train"], lw=1.2, label="train, sampled")
    if test:
        axes.plot(*zip(*test, strict=True), color=PALETTE["test"], lw=2, marker="o", ms=4)
        axes.lines[-1].set_label("test, greedy")
    axes.set_ylim(bottom=0)
    _legend(axes)
    if title:
        axes.set_title(title, loc="left", pad=20, fontsize=10)
    return _svg(figure, background)


def _line(curve: pl.DataFrame, column: str, label: str) -> str | None:
    points = _points(curve, column)
    if not points:
        return None
    figure, axes = _figure(label)
    steps, values = zip(*points, strict=True)
    axes.plot(steps, values, color=PALETTE["train"], lw=1)
    if len(points) >= 20:
        window = len(points) // 10 + 1
        smooth = pl.Series(values).rolling_mean(window, min_samples=1, center=True)
        axes.plot(steps, smooth, color=PALETTE["test"], lw=2)
    if min(values) >= 0:
        axes.set_ylim(bottom=0)
    return _svg(figure)


def _verdicts(shares: pl.DataFrame) -> str | None:
    if shares.is_empty():
        return None
    table = shares.pivot("verdict", index="step", values="share").fill_null(0).sort("step")
    known = [name for name in PALETTE if name in table.columns]
    other = sorted(set(table.columns) - {"step", *known})
    order = sorted(known, key=lambda name: (name != "correct", name == "no_answer"))
    order = [*order, *other]
    colours = [PALETTE.get(name, PALETTE["muted"]) for name in order]
    figure, axes = _figure("share of rollouts")
    steps = table["step"].to_list()
    if len(steps) == 1:  # an area needs two
        steps, table = [*steps, steps[0] + 1], pl.concat([table, table])
    axes.stackplot(steps, *[table[name] for name in order], colors=colours, labels=order, lw=0)
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    _legend(axes, ncols=3)
    return _svg(figure)


def _by_num_solutions(rows: Sequence[Row]) -> str | None:
    if not rows:
        return None
    figure, axes = _figure("share solved", x_label="solutions that a problem has")
    places = range(len(rows))
    for offset, column, colour, label in (
        (-0.2, "base_accuracy", PALETTE["base"], "before"),
        (0.2, "accuracy", PALETTE["test"], "after"),
    ):
        heights = [row[column] or 0 for row in rows]
        axes.bar([p + offset for p in places], heights, width=0.38, color=colour, label=label)
    axes.set_xticks(list(places), [row["solutions"] for row in rows])
    axes.grid(axis="x", visible=False)
    _legend(axes)
    return _svg(figure)


def _pass_at_k(rows: Sequence[Row]) -> str | None:
    if not rows:
        return None
    figure, axes = _figure("pass@k", x_label="k samples")
    for is_base, colour, label in ((True, "base", "before"), (False, "test", "after")):
        own = [row for row in rows if (row["model"] == "base") == is_base]
        ks = [row["k"] for row in own]
        low, high = [row["low"] for row in own], [row["high"] for row in own]
        axes.fill_between(ks, low, high, color=PALETTE[colour], alpha=0.2, lw=0)
        means = [row["pass_at_k"] for row in own]
        axes.plot(ks, means, color=PALETTE[colour], lw=2, marker="o", ms=4, label=label)
    axes.set_xscale("log", base=2)
    ticks = sorted({row["k"] for row in rows})
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    _legend(axes)
    return _svg(figure)


def _points(curve: pl.DataFrame, column: str) -> list[tuple[int, float]]:
    finite = curve.filter(pl.col(column).is_finite())
    return list(zip(finite["step"], finite[column], strict=True))


def _figure(y_label: str, *, x_label: str = "step") -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE_IN, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return figure, axes


def _legend(axes: Axes, *, ncols: int = 2) -> None:
    """A legend above the plot, where it covers no data."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=ncols,
        borderaxespad=0.2,
        columnspacing=1,
        handlelength=1.2,
        handletextpad=0.5,
    )


def _svg(figure: Figure, background: str | None = None) -> str:
    """Returns the figure as an `<svg>` element, the same bytes for the same figure."""
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(buffer, format="svg", metadata=metadata, facecolor=background or "none")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
