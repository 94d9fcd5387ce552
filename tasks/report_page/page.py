"""Turns a report's data into its HTML page and its markdown, by the templates beside this file."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rl_core.evaluation.files import PAGE
from rl_core.system.atomic import is_disk_full, write_text_atomically
from rl_core.system.words import disk_size, exact_duration, markdown_table
from rl_core.types import Problem
from tasks.prefect_ui.chart import PALETTE
from tasks.report_page.charts import charts, overlaid, resource_charts
from tasks.report_page.data import Comparison, ReportData
from tasks.report_page.samples import ON_PAGE, Answers, Row, choose_answers

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_HEADLINE: Final = "runs beside one another</h1>"
"""Of the page of a comparison, by which it is known."""
_LONGEST_NAME: Final = 150
_logger = logging.getLogger(__name__)


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


def write_page(rows: Sequence[Row], problems: Sequence[Problem], file: Path) -> None:
    """Writes the page of a model's answers (see `choose_answers`) beside the file of their rows.

    A full disk costs the page and a warning.
    """
    answers = choose_answers(rows, problems, most=ON_PAGE)
    try:
        write_text_atomically(file.with_suffix(PAGE), render_answers(answers))
    except OSError as error:
        if not is_disk_full(error):
            raise
        _logger.warning("the page of right and wrong answers was not written: %s", error)


def write_comparison(comparison: Comparison, page: Path) -> Path | None:
    """Writes the page of a comparison; returns where a page of other runs went that was there.

    Raises:
        ValueError: what is there is no page of a comparison.
    """
    moved = None
    if page.exists():
        others = _compared_in(page)
        if set(others) != set(comparison.run_ids):
            name = "-".join(others)
            if len(name) > _LONGEST_NAME:
                name = hashlib.sha256(name.encode()).hexdigest()[:12]
            moved = page.rename(page.with_name(f"{page.stem}-{name}{page.suffix}"))
    write_text_atomically(page, render_comparison(comparison))
    return moved


def _compared_in(page: Path) -> list[str]:
    """Returns the runs that a page of ours compares."""
    text = page.read_text(encoding="utf-8", errors="replace")
    title = re.search(r"<title>(.+) · countdown-train</title>", text)
    if title is None or _HEADLINE not in text:
        raise ValueError(
            f"{page} is there and compares no runs: choose another name with output=FILE"
        )
    return html.unescape(title[1]).split(", ")


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
    environment.filters |= {"setting": _setting}
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
