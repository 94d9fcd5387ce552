"""Turns a report's data into its HTML page and its markdown, by the templates beside this file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rl_core.resources.oom_recovery import in_words
from rl_core.system.words import disk_size, exact_duration
from tasks.prefect_ui.chart import PALETTE
from tasks.queries.render import markdown_table
from tasks.report_page.answers import Answers
from tasks.report_page.charts import charts, overlaid, resource_charts
from tasks.report_page.compare import Comparison
from tasks.report_page.data import ReportData

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_html(data: ReportData) -> str:
    """Returns one self-contained page; all text of models and settings is escaped."""
    return _page(
        "report.html.j2",
        data=data,
        run=data.record,
        charts=charts(data),
        resource_charts=resource_charts(data),
    )


def render_markdown(data: ReportData) -> str:
    """Returns the short version: headline and tables, without any text of a model."""
    template = _environment(autoescape=False).get_template("report.md.j2")
    return template.render(data=data, run=data.record)


def render_comparison(comparison: Comparison) -> str:
    """Returns the page of several runs beside one another, self-contained as a report is."""
    return _page(
        "compare.html.j2",
        comparison=comparison,
        charts=overlaid(comparison.curves),
    )


def render_answers(answers: Answers) -> str:
    """Returns the page of a model's right and wrong answers, self-contained as a report is."""
    return _page("answers.html.j2", answers=answers)


def _page(template: str, **values: object) -> str:
    """Returns a page that may run its own script alone, by that script's hash."""
    script = (_TEMPLATES / "hover.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment(autoescape=True)
        .get_template(template)
        .render(
            script=script,
            script_hash=f"sha256-{digest}",
            palette={name.replace("_", "-"): colour for name, colour in PALETTE.items()},
            **values,
        )
    )


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    kinds = {kind: partial(_shown, kind=kind) for kind in _KINDS}
    environment.filters |= {"shown": _shown, "in_markdown": _in_markdown, **kinds}
    environment.filters |= {"typed": in_words, "setting": _setting}
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
    """Returns a table of rows; of each column its head, field and kind, a number if it has one."""
    return markdown_table(
        [head for head, _, _ in columns],
        [[_shown(row[field], kind) for _, field, kind in columns] for row in rows],
        numbers=[i for i, (_, _, kind) in enumerate(columns) if kind],
    )


def _setting(value: object) -> str:
    """As one would type it."""
    if isinstance(value, list):
        return f"[{','.join(map(_setting, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
