"""Which charts a report and a comparison have, and what they are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import log2

import polars as pl

from tasks.prefect_ui.chart import (
    COLOURS,
    PALETTE,
    Chart,
    Point,
    Series,
    draw,
    stacked,
    thinned,
)
from tasks.report_page.data import ReportData, Row

_MOST_AREAS = 6
"""Of a stack of phases or processes; the smallest are summed up."""


def charts(data: ReportData) -> dict[str, Chart]:
    """Returns the charts there is something to draw for: title to chart."""
    curve = data.curve
    return _drawn(
        {
            "Accuracy": _accuracy(curve),
            "What became of the responses": _verdicts(data.verdicts, data.steps_per_row),
            "Score, partial credit included": _line(curve, "score", "score per response"),
            "Response length": _line(curve, "response_tokens", "tokens per response"),
            "Entropy": _line(curve, "entropy", "nats per token"),
            "KL to the reference": _line(curve, "kl", "nats per response"),
            "Accuracy by number of solutions": _before_and_after(
                data.rows["by_num_solutions"], "solutions", "solutions that a problem has"
            ),
            "Accuracy by count of numbers": _before_and_after(
                data.rows["by_num_operands"], "num_operands", "numbers that a problem has"
            ),
            "Accuracy by task": _before_and_after(
                data.rows["by_data_source"], "data_source", "task that a problem is of"
            ),
            "pass@k": _pass_at_k(data.rows["pass_at_k"]),
            "Loss of fine-tuning (SFT), before training": _sft(data.rows["sft"]),
        }
    )


def resource_charts(data: ReportData) -> dict[str, Chart]:
    """Returns where time, memory and disk went: title to chart."""
    return _drawn(
        {
            "Seconds per step": _stack(data.timeline, "timing_s/", "seconds", without=("step",)),
            "Memory of the machine, by process": _stack(data.timeline, "memory/host_gib/", "GiB"),
            "Memory of the learner, fullest phase of the step": _peak(data.timeline),
            "Free disk": draw([_metric(data.timeline, "disk/free_gib", "free")], "GiB"),
            "Staleness of tokens": draw(
                [
                    _metric(data.timeline, "rollout/staleness_mean", "mean"),
                    _metric(data.timeline, "rollout/staleness_max", "max", "train"),
                ],
                "updates",
            ),
        }
    )


_OVERLAID = (
    ("Test accuracy", "test_accuracy", "share solved"),
    ("Training accuracy", "accuracy", "share solved"),
    ("Score, partial credit included", "score", "score per response"),
    ("Response length", "response_tokens", "tokens per response"),
    ("Entropy", "entropy", "nats per token"),
    ("KL to the reference", "kl", "nats per response"),
)


def overlaid(curves: Mapping[str, pl.DataFrame]) -> dict[str, Chart]:
    """Returns charts with one line per run (rows of `learning_curve` by run): title to chart."""
    return _drawn(
        {
            title: draw(
                [
                    Series(
                        run,
                        COLOURS[i % len(COLOURS)],
                        _points(curve, column),
                        "line" if i < len(COLOURS) else "dashes",
                    )
                    for i, (run, curve) in enumerate(curves.items())
                ],
                label,
                legend_columns=1,
            )
            for title, column, label in _OVERLAID
        }
    )


def _drawn(charts: Mapping[str, Chart | None]) -> dict[str, Chart]:
    return {title: chart for title, chart in charts.items() if chart}


def _accuracy(curve: pl.DataFrame) -> Chart | None:
    series = [
        Series("train, sampled", "train", _points(curve, "accuracy")),
        Series("test, greedy", "test", _points(curve, "test_accuracy"), "dots"),
    ]
    return draw(series, "share solved")


def _line(curve: pl.DataFrame, column: str, label: str) -> Chart | None:
    """Returns each step, and where there are many their rolling mean over a tenth of them."""
    each = thinned(Series("each step", "train", _points(curve, column)))
    window = len(each.points) // 10 + 1
    if len(each.points) < 20:
        return draw([each], label)
    values = pl.Series([y for _, y in each.points])
    means = values.rolling_mean(window, min_samples=1, center=True)
    points = [(x, float(y)) for (x, _), y in zip(each.points, means, strict=True)]
    return draw([each, Series(f"mean of {window}", "test", points, "bold")], label)


def _sft(rows: list[Row]) -> Chart | None:
    def points(field: str) -> list[Point]:
        return [(row["step"], row[field]) for row in rows if field in row]

    series = [
        Series("learned", "train", points("loss")),
        Series("held out", "test", points("held_out_loss"), "dots"),
    ]
    return draw(series, "nats per token")


def _verdicts(shares: pl.DataFrame, steps_per_row: int) -> Chart | None:
    if shares.is_empty():
        return None
    table = shares.pivot("verdict", index="step", values="share").fill_null(0).sort("step")
    known = [name for name in PALETTE if name in table.columns]
    other = sorted(set(table.columns) - {"step", *known})
    order = sorted(known, key=lambda name: (name != "correct", name == "no_answer"))
    spare = [name for name in COLOURS if name not in known]  # an env's own verdicts have none
    colours = {name: name for name in order} | dict(zip(other, cycle(spare), strict=False))
    series = [
        Series(name, colour, _points(table, name), span=steps_per_row)
        for name, colour in colours.items()
    ]
    return draw(stacked(series), "share of rollouts", y_top=1)


def _stack(
    timeline: pl.DataFrame, prefix: str, label: str, *, without: Sequence[str] = ()
) -> Chart | None:
    """Returns the metrics of a prefix on top of one another, the largest below."""
    hidden = [f"{prefix}{name}" for name in without]
    rows = timeline.filter(
        pl.col("metric").str.starts_with(prefix) & ~pl.col("metric").is_in(hidden)
    ).with_columns(pl.col("metric").str.strip_prefix(prefix))
    if rows.is_empty():
        return None
    sums = rows.group_by("metric").agg(pl.sum("value")).sort("value", "metric", descending=True)
    shown = sums["metric"].to_list()
    if len(shown) > _MOST_AREAS:
        shown = shown[: _MOST_AREAS - 1]
        is_shown = pl.col("metric").is_in(shown)
        named = pl.when(is_shown).then(pl.col("metric")).otherwise(pl.lit("the rest"))
        rows = rows.with_columns(named.alias("metric"))
        shown.append("the rest")
    table = rows.pivot("metric", index="step", values="value", aggregate_function="sum")
    table = table.fill_null(0).sort("step")
    series = [
        Series(name, COLOURS[i % len(COLOURS)], _points(table, name))
        for i, name in enumerate(shown)
    ]
    return draw(stacked(series), label)


def _peak(timeline: pl.DataFrame) -> Chart | None:
    """Returns the most that any phase of the learner took, over steps."""
    phases = timeline.filter(pl.col("metric").str.starts_with("memory/peak_gib/"))
    peaks = phases.group_by("step").agg(pl.max("value")).sort("step")
    return draw([Series("learner", "test", _points(peaks, "value"))], "GiB")


def _metric(timeline: pl.DataFrame, metric: str, name: str, colour: str = "test") -> Series:
    rows = timeline.filter(pl.col("metric") == metric).sort("step")
    return Series(name, colour, _points(rows, "value"))


def _before_and_after(rows: Sequence[Row], column: str, x_label: str) -> Chart | None:
    names = {float(i): str(row[column]) for i, row in enumerate(rows)}
    of = x_label.partition(" ")[0]
    series = [
        Series(
            label,
            colour,
            [(i, row[value] or 0.0) for i, row in zip(names, rows, strict=True)],
            "bars",
        )
        for label, colour, value in (
            ("before", "base", "base_accuracy"),
            ("after", "test", "accuracy"),
        )
    ]
    says = {
        i: f"{name} {of}, {row['problems']} problems"
        for (i, name), row in zip(names.items(), rows, strict=True)
    }
    return draw(series, "share solved", x_label=x_label, x_ticks=names, says_at=says)


def _pass_at_k(rows: Sequence[Row]) -> Chart | None:
    ks = sorted({row["k"] for row in rows})
    series = []
    for label, colour, is_base in (("before", "base", True), ("after", "test", False)):
        own = [row for row in rows if (row["model"] == "base") == is_base]
        points = [(log2(row["k"]), row["pass_at_k"]) for row in own]
        band = [(row["low"], row["high"]) for row in own]
        series.append(Series(label, colour, points, "dots", band=band))
    ticks = {log2(k): str(k) for k in ks}
    says = {log2(k): f"k = {k}" for k in ks}
    return draw(series, "pass@k", x_label="k samples", x_ticks=ticks, says_at=says)


def _points(frame: pl.DataFrame, column: str) -> list[Point]:
    finite = frame.filter(pl.col(column).is_finite())
    return list(zip(finite["step"], finite[column], strict=True))
