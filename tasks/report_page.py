"""Turns a report's data into its HTML page and its markdown, by the templates beside this file."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report_charts import PALETTE, charts
from tasks.report_data import ReportData

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_html(data: ReportData) -> str:
    """Returns one self-contained page; all text of models and settings is escaped."""
    return (
        _environment(autoescape=True)
        .get_template("report.html.j2")
        .render(
            data=data,
            run=data.record,
            charts=charts(data),
            palette={name.replace("_", "-"): colour for name, colour in PALETTE.items()},
        )
    )


def render_markdown(data: ReportData) -> str:
    """Returns the short version: headline and tables, without any text of a model."""
    template = _environment(autoescape=False).get_template("report.md.j2")
    return template.render(data=data, run=data.record)


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "bytes": _bytes, "time": _time, "signed": _signed}
    return environment


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
