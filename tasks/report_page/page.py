"""Turns a report's data into charts, HTML and markdown, by the templates in this folder."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from math import log2
from pathlib import Path
from typing import Any, Final

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rl_core.evaluation.rows import PAGE
from rl_core.runs.ways_on import COLUMNS, NOTES, WAYS_ON
from rl_core.system.atomic import is_disk_full, write_text_atomically
from rl_core.system.words import LINES, disk_size, exact_duration, markdown_table, printable
from rl_core.types import Problem
from tasks.prefect_ui.artifacts import plain
from tasks.prefect_ui.chart import COLOURS, PALETTE, Point, Series, draw, stacked, thinned
from tasks.report_page.data import ReportData
from tasks.report_page.head import as_typed
from tasks.report_page.samples import Row, choose_answers

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_ON_PAGE: Final = 12  # answers of each kind
_MOST_AREAS = 6  # of a stack of phases or processes; the smallest are summed up
_logger = logging.getLogger(__name__)


def render_html(data: ReportData) -> str:
    """Returns one self-contained page; all text of models and settings is escaped."""
    return _page(
        "report.html.j2",
        data=data.shown,
        run=data.record,
        continuing={"columns": COLUMNS, "rows": WAYS_ON, "notes": NOTES},
        charts=charts(data),
        resource_charts=resource_charts(data),
    )


def render_markdown(data: ReportData) -> str:
    """Returns the short version, headline and tables: no text in it becomes markup."""
    return plain(render_text("report.md.j2", data=data.shown, run=data.record))


def render_text(template: str, **values: object) -> str:
    """Returns a text by a template of this folder."""
    text = _environment(autoescape=False).get_template(template).render(**values)
    return printable(text, keep=LINES)


def write_page(rows: Sequence[Row], problems: Sequence[Problem], file: Path) -> None:
    """Writes the page of a model's answers next to their rows, if the disk has room."""
    answers = choose_answers(rows, problems, most=_ON_PAGE)
    try:
        write_text_atomically(file.with_suffix(PAGE), _page("answers.html.j2", answers=answers))
    except OSError as error:
        if not is_disk_full(error):
            raise
        _logger.warning("the page of right and wrong answers was not written: %s", error)


def _page(template: str, **values: object) -> str:
    """Returns a page that runs no script and fetches nothing."""
    palette = {name.replace("_", "-"): colour for name, colour in PALETTE.items()}
    page = _environment(autoescape=True).get_template(template)
    return printable(page.render(palette=palette, **values), keep=LINES)


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {kind: partial(_shown, kind=kind) for kind in _KINDS}
    environment.filters |= {"shown": _shown, "in_markdown": _in_markdown, "setting": as_typed}
    environment.filters["code"] = _code
    return environment


_KINDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "share": "{:.3f}".format,
    "signed": "{:+.3f}".format,
    "whole": "{:.0f}".format,
    "hundredths": "{:.2f}".format,
    "time": exact_duration,
    "bytes": disk_size,
}
"""How a number is shown."""


def _shown(value: Any, kind: str) -> Any:
    if value is None and kind:
        return "-"
    return _KINDS[kind](value) if kind in _KINDS else value


def _in_markdown(rows: Iterable[Any], columns: Sequence[tuple[str, Any, str]]) -> str:
    """Returns a table of rows; a column is its head, field and kind, a number if it has a kind."""
    return markdown_table(
        [head for head, _, _ in columns],
        [[_shown(row[field], kind) for _, field, kind in columns] for row in rows],
        numbers=[i for i, (_, _, kind) in enumerate(columns) if kind],
    )


def _code(text: object) -> Markup:
    """Returns a text, escaped, with what stands between back-ticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # escaped


def charts(data: ReportData) -> dict[str, str]:
    """Returns the charts that have data, by title."""
    curve = data.curve
    rows = data.rows
    sft = [
        Series("learned", "train", _of_rows(rows["sft"], "loss")),
        Series("held out", "test", _of_rows(rows["sft"], "held_out_loss"), "dots"),
    ]
    accuracy = [
        Series("train, sampled", "train", _points(curve, "accuracy")),
        Series(f"test, {data.decoding}", "test", _points(curve, "test_accuracy"), "dots"),
    ]
    return _drawn(
        {
            "Accuracy": draw(accuracy, "share solved"),
            "What became of the responses": _verdicts(data.verdicts),
            **{title: _line(curve, name, label) for title, name, label in _CURVES},
            "Accuracy by number of solutions": _before_and_after(
                rows["by_num_solutions"], "solutions", "solutions that a problem has"
            ),
            "Accuracy by count of numbers": _before_and_after(
                rows["by_num_operands"], "num_operands", "numbers that a problem has"
            ),
            "pass@k": _pass_at_k(rows["pass_at_k"]),
            "Loss of fine-tuning (SFT), before training": draw(sft, "nats per token"),
        }
    )


def resource_charts(data: ReportData) -> dict[str, str]:
    """Returns the charts of time, memory and disk, by title."""
    phases = data.timeline.filter(pl.col("metric").str.starts_with("memory/peak_gib/"))
    peaks = phases.group_by("step").agg(pl.max("value")).sort("step")
    most = Series("learner", "test", _points(peaks, "value"))
    return _drawn(
        {
            "Seconds per step": _stack(data.timeline, "timing_s/", "seconds", without=("step",)),
            "Memory of the machine, by process": _stack(data.timeline, "memory/host_gib/", "GiB"),
            "Memory of the learner, fullest phase of the step": draw([most], "GiB"),
        }
    )


_CURVES = (
    ("Score, partial credit included", "score", "score per response"),
    ("Response length", "response_tokens", "tokens per response"),
    ("Entropy", "entropy", "nats per token"),
    ("KL to the reference", "kl", "nats per token"),
)


def _drawn(charts: Mapping[str, str | None]) -> dict[str, str]:
    return {title: chart for title, chart in charts.items() if chart}


def _line(curve: pl.DataFrame, column: str, label: str) -> str | None:
    """Draws each step and, from 20 points on, their rolling mean over a tenth of them."""
    each = thinned(Series("each step", "train", _points(curve, column)))
    window = len(each.points) // 10 + 1
    if len(each.points) < 20:
        return draw([each], label)
    means = pl.Series([y for _, y in each.points]).rolling_mean(window, min_samples=1, center=True)
    points = [(x, float(y)) for (x, _), y in zip(each.points, means, strict=True)]
    return draw([each, Series(f"mean of {window}", "test", points, "bold")], label)


def _verdicts(shares: pl.DataFrame) -> str | None:
    if shares.is_empty():
        return None
    table = shares.pivot("verdict", index="step", values="share").fill_null(0).sort("step")
    known = [name for name in PALETTE if name in table.columns]
    known.sort(key=lambda name: (name != "correct", name == "no_answer"))
    other = sorted(set(table.columns) - {"step", *known})  # an env's own verdicts have no colour
    spare = cycle(name for name in COLOURS if name not in known)
    colours = dict(zip(known, known, strict=True)) | dict(zip(other, spare, strict=False))
    series = [Series(name, colour, _points(table, name)) for name, colour in colours.items()]
    return draw(stacked(series), "share of rollouts", y_top=1)


def _stack(
    timeline: pl.DataFrame, prefix: str, label: str, *, without: Sequence[str] = ()
) -> str | None:
    """Returns the metrics of a prefix on top of one another, the largest below."""
    metric = pl.col("metric")
    rows = timeline.filter(metric.str.starts_with(prefix))
    rows = rows.with_columns(metric.str.strip_prefix(prefix)).filter(~metric.is_in(without))
    if rows.is_empty():
        return None
    sums = rows.group_by("metric").agg(pl.sum("value")).sort("value", "metric", descending=True)
    shown = sums["metric"].to_list()
    if len(shown) > _MOST_AREAS:
        shown[_MOST_AREAS - 1 :] = ["the rest"]
        is_rest = ~metric.is_in(shown)
        rows = rows.with_columns(
            metric=pl.when(is_rest).then(pl.lit("the rest")).otherwise("metric")
        )
    table = rows.pivot("metric", index="step", values="value", aggregate_function="sum")
    table = table.fill_null(0).sort("step")
    colours = dict(zip(shown, cycle(COLOURS), strict=False))
    series = [Series(name, colour, _points(table, name)) for name, colour in colours.items()]
    return draw(stacked(series), label)


def _before_and_after(rows: Sequence[Row], column: str, x_label: str) -> str | None:
    names = {float(i): str(row[column]) for i, row in enumerate(rows)}
    before, after = (
        [(float(i), row[value] or 0.0) for i, row in enumerate(rows)]
        for value in ("base_accuracy", "accuracy")
    )
    series = [Series("before", "base", before, "bars"), Series("after", "test", after, "bars")]
    return draw(series, "share solved", x_label=x_label, x_ticks=names)


def _pass_at_k(rows: Sequence[Row]) -> str | None:
    ks = sorted({row["k"] for row in rows})
    if len(ks) < 2:  # a single number, which the table shows
        return None
    of_base = [row for row in rows if row["model"] == "base"]
    others = [row for row in rows if row["model"] != "base"]
    series = [
        Series(
            label,
            colour,
            [(log2(row["k"]), row["pass_at_k"]) for row in of_model],
            "dots",
            band=[(row["low"], row["high"]) for row in of_model],
        )
        for label, colour, of_model in (("before", "base", of_base), ("after", "test", others))
    ]
    return draw(series, "pass@k", x_label="k samples", x_ticks={log2(k): str(k) for k in ks})


def _of_rows(rows: list[Row], field: str) -> list[Point]:
    return [(row["step"], row[field]) for row in rows if field in row]


def _points(frame: pl.DataFrame, column: str) -> list[Point]:
    finite = frame.filter(pl.col(column).is_finite())
    return list(zip(finite["step"], finite[column], strict=True))
