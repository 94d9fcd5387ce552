import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

from tasks.prefect_ui.chart import Series
from tasks.report import write_report
from tasks.report_page import page as module
from tasks.report_page.data import ReportData
from tasks.report_page.page import charts, resource_charts

Numbers = dict[str, list[tuple[float, float]]]


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Callable[[ReportData], dict[str, Numbers]]:
    """What all charts would draw: title -> name -> its points."""

    def as_numbers(series: list[Series], *_: Any, **__: Any) -> Numbers:
        shown = {one.name: [(x, round(y, 4)) for x, y in one.points] for one in series}
        return {name: points for name, points in shown.items() if points}

    monkeypatch.setattr(module, "draw", as_numbers)
    return lambda data: charts(data) | resource_charts(data)  # type: ignore[return-value]


def words_of(drawing: str) -> set[str | None]:
    return {node.text for node in ElementTree.fromstring(f"<svg>{drawing}</svg>").iter("text")}


def test_charts_take_every_colour_from_the_page(two_runs, alpha_data):
    page = write_report(two_runs / "runs" / "alpha").html.read_text()
    light = dict(re.findall(r"--([\w-]+): (#\w+)", page[: page.index("@media")]))
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    assert used <= set(light)
    assert {"ink", "grid", "test", "correct", "no-answer"} <= used
    for title, drawing in (charts(alpha_data) | resource_charts(alpha_data)).items():
        assert not re.findall(r"#[0-9a-f]{6}\b", drawing), "dark mode cannot change it"
        assert f'<svg role="img" aria-label="{title}" viewBox=' in page


def test_verdicts_that_nobody_knows_are_told_apart(alpha_data):
    names = ("correct", "incorrect", "reward_error", "too_short", "off_topic")
    shares = pl.DataFrame([{"step": 1, "verdict": name, "share": 0.2} for name in names])
    drawn = charts(replace(alpha_data, verdicts=shares))["What became of the responses"]
    areas = re.findall(r"<polygon [^>]*fill:var\(--([\w-]+)\)", drawn)
    assert {"correct", "incorrect", "reward-error"} <= set(areas)
    assert len(set(areas)) == len(names)
    assert set(names) <= words_of(drawn)


def test_charts_hold_what_was_measured(alpha_data, numbers):
    drawn = numbers(alpha_data)
    for title in ("Score, partial credit included", "Response length"):
        assert list(drawn.pop(title)) == ["each step"]
    # No KL and no entropy were logged. Base samples: 0 of 4 and 2 of 4 right; trained: 4 and 1.
    assert drawn == {
        "Accuracy": {
            "train, sampled": [(1, 0), (2, 0.75), (3, 0.25)],
            "test, greedy": [(0, 0.25), (3, 0.5)],
        },
        "What became of the responses": {
            "correct": [(1, 0), (2, 0.75), (3, 0.25)],
            "wrong_value": [(1, 0.25), (2, 0.25), (3, 0.5)],
            "bad_syntax": [(1, 0.25), (2, 0), (3, 0)],
            "no_answer": [(1, 0.5), (2, 0), (3, 0.25)],
        },
        "Accuracy by number of solutions": {
            "before": [(0, 0), (1, 0), (2, 1)],
            "after": [(0, 0.5), (1, 1), (2, 0)],
        },
        "Accuracy by count of numbers": {
            "before": [(0, 0), (1, 0.5)],
            "after": [(0, 0.5), (1, 0.5)],
        },
        "pass@k": {
            "before": [(0, 0.25), (1, 0.4167), (2, 0.5)],
            "after": [(0, 0.625), (1, 0.75), (2, 1)],
        },
        "Seconds per step": {
            "gen": [(1, 1), (2, 2), (3, 3)],
            "update_actor": [(1, 0), (2, 1), (3, 2)],
        },
        "Memory of the learner, fullest phase of the step": {
            "learner": [(1, 1.5), (2, 2.5), (3, 2)]
        },
    }


def test_what_only_some_runs_log_is_drawn_too(alpha_data, numbers):
    """SFT before the run, memory by process."""
    sft = [{"step": 0, "held_out_loss": 2.0}, {"step": 1, "loss": 1.5}]
    metrics = [(1, f"memory/host_gib/p{i}", float(10 - i)) for i in range(8)]
    timeline = pl.DataFrame(metrics, ["step", "metric", "value"], orient="row")
    data = replace(alpha_data, rows=alpha_data.rows | {"sft": sft}, timeline=timeline)
    drawn = numbers(data)
    loss = {"learned": [(1, 1.5)], "held out": [(0, 2)]}
    assert drawn["Loss of fine-tuning (SFT), before training"] == loss
    processes = {f"p{i}": [(1, 10 - i)] for i in range(5)} | {"the rest": [(1, 5 + 4 + 3)]}
    assert drawn["Memory of the machine, by process"] == processes
