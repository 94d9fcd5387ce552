"""Report: a run, finished or not, as one HTML page and as artifacts of its flow run."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rl_core.runs.run_folder import RunFolder, write_unless_full
from rl_core.system.atomic import write_text_atomically
from rl_core.system.redaction import redacting_errors
from tasks.audit.receipt import audit_run
from tasks.prefect_ui.artifacts import create_markdown_artifact
from tasks.prefect_ui.chart import as_picture, learning_curve
from tasks.report_page.data import gather
from tasks.report_page.page import render_html, render_markdown

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What is written and what the Prefect UI shows."""

    html: Path  # where the page goes
    page: str
    markdown: str
    learning_curve_uri: str | None  # an SVG data URI; None before the first step


def write_report(run_folder: Path, *, is_last_stage: bool = False) -> Report:
    """Writes `report.html`; as a last stage only if the disk has room. ValueError without a run."""
    report = make_report(run_folder, is_last_stage=is_last_stage)
    write = partial(write_text_atomically, report.html, report.page)
    if is_last_stage:
        remedy = f"`countdown-train report {run_folder.name}` writes it"
        write_unless_full(RunFolder(run_folder), report.html.name, write, remedy=remedy)
    else:
        write()
    return report


def make_report(run_folder: Path, *, is_last_stage: bool = False) -> Report:
    """Returns the report; as `is_last_stage` of a run, it shows `running` as `finished`."""
    run = RunFolder(run_folder)
    data = gather(run)
    rows = run.metrics.read()
    if is_last_stage:
        data = replace(data, record=data.record.model_copy(update={"status": "finished"}))
    return Report(
        run_folder / "report.html",
        render_html(data),
        render_markdown(data),
        learning_curve(rows, f"{run_folder.name}: {rows[-1]['step']} steps") if rows else None,
    )


@redacting_errors()
def report_run(run: RunFolder) -> Path:
    """Writes the report that ends a run; artifact `report` shows it in short."""
    try:
        run.receipt.keep_audit(audit_run(run), run.read().steps)
    except (OSError, ValueError) as error:  # a full disk: the report does without
        _logger.warning("there is no receipt: %s", error)
    report = write_report(run.path, is_last_stage=True)
    page = report.html.resolve()
    create_markdown_artifact(
        f"{report.markdown}\n{as_picture(report.learning_curve_uri) or ''}\nThe whole report, with "
        f"charts and samples: [{page}]({page.as_uri()}) (copy the link: browsers do not open "
        "a link to a file from a page of a server)\n",
        key="report",
        description=f"What became of {run.run_id}, in short.",
        is_first=True,
    )
    return report.html
