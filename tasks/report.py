"""Report: a run, finished or not, as one HTML page and as artifacts of its flow run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from prefect import task
from prefect.artifacts import create_image_artifact, create_markdown_artifact

from rl_core.atomic import write_text_atomically
from rl_core.tracking import RunFolder
from tasks.report_charts import learning_curve_uri
from tasks.report_data import gather
from tasks.report_page import render_html, render_markdown


@dataclass(frozen=True)
class Report:
    """What was written and what the Prefect UI shows."""

    html: Path
    markdown: str
    learning_curve_uri: str | None
    """An SVG data URI; None before the first step."""


def write_report(run_folder: Path, *, is_last_stage: bool = False) -> Report:
    """Writes `report.html` into a run's folder, from what lies there, and returns it.

    Args:
        run_folder: `<storage.root>/runs/<run_id>`.
        is_last_stage: the run ends with this report, so `running` is shown as `finished`.

    Raises:
        ValueError: there is no run at that path.
    """
    data = gather(run_folder)
    if is_last_stage:
        data = replace(data, record=data.record.model_copy(update={"status": "finished"}))
    html = run_folder / "report.html"
    write_text_atomically(html, render_html(data))
    return Report(html, render_markdown(data), learning_curve_uri(data))


@task(name="report", task_run_name="write report.html")
def report_task(run: RunFolder) -> Path:
    """Writes the report that ends a run; artifacts `report` and `learning-curve` show it."""
    report = write_report(run.path, is_last_stage=True)
    create_markdown_artifact(report.markdown, key="report", description=str(report.html))
    if report.learning_curve_uri:
        create_image_artifact(
            report.learning_curve_uri,
            key="learning-curve",
            description=f"accuracy over steps of {run.run_id}",
        )
    return report.html
