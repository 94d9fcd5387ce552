import re
from dataclasses import replace
from xml.etree import ElementTree

import polars as pl

from tasks.prefect_ui.chart import Chart
from tasks.report import write_report
from tasks.report_page.page import charts, overlaid, resource_charts

ACCURACY = [
    "step 0: test, greedy 0.25",
    "step 1: train, sampled 0 · test, greedy 0.25 (step 0)",
    "step 2: train, sampled 0.75 · test, greedy 0.25 (step 0)",
    "step 3: train, sampled 0.25 · test, greedy 0.5",
]
"""What a hover says of alpha, at each step."""


def words_of(chart: Chart) -> set[str | None]:
    drawing = ElementTree.fromstring(f"<svg>{chart.drawing}</svg>")
    return {node.text for node in drawing.iter("text")}


def test_charts_take_every_colour_from_the_page(two_runs, alpha_data):
    page = write_report(two_runs / "runs" / "alpha").html.read_text()
    light = dict(re.findall(r"--([\w-]+): (#\w+)", page[: page.index("@media")]))
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    assert used <= set(light)
    assert {"ink", "grid", "test", "correct", "no-answer"} <= used
    for title, chart in (charts(alpha_data) | resource_charts(alpha_data)).items():
        assert not re.findall(r"#[0-9a-f]{6}\b", chart.drawing), "dark mode cannot change it"
        assert f'<svg role="img" aria-label="{title}" viewBox=' in page


def test_charts_show_the_logged_steps(alpha_data):
    drawn = charts(alpha_data)
    assert list(drawn) == [
        "Accuracy",
        "What became of the responses",
        "Score, partial credit included",
        "Response length",
        "Accuracy by number of solutions",
        "Accuracy by count of numbers",
        "pass@k",
    ]  # no KL and no entropy were logged
    assert {"train, sampled", "test, greedy", "share solved"} <= words_of(drawn["Accuracy"])
    verdicts = words_of(drawn["What became of the responses"])
    assert {"correct", "wrong_value", "bad_syntax", "no_answer"} <= verdicts


def test_verdicts_that_nobody_knows_are_told_apart(alpha_data):
    names = ("correct", "incorrect", "reward_error", "too_short", "off_topic")
    shares = pl.DataFrame([{"step": 1, "verdict": name, "share": 0.2} for name in names])
    drawn = charts(replace(alpha_data, verdicts=shares))["What became of the responses"]
    areas = re.findall(r"<polygon [^>]*fill:var\(--([\w-]+)\)", drawn.drawing)
    assert {"correct", "incorrect", "reward-error"} <= set(areas)
    assert len(set(areas)) == len(names)


def test_fine_tuning_before_the_run_has_a_curve(alpha_data):
    rows = [{"step": 0, "held_out_loss": 2.0}, {"step": 1, "loss": 1.5}]
    tuned = replace(alpha_data, rows=alpha_data.rows | {"sft": rows})
    drawn = charts(tuned)["Loss of fine-tuning (SFT), before training"]
    assert drawn.says == ["step 0: held out 2", "step 1: learned 1.5 · held out 2 (step 0)"]


def test_a_hover_says_what_was_measured(alpha_data):
    drawn = charts(alpha_data)
    assert drawn["Accuracy"].says == ACCURACY
    assert drawn["Accuracy"].at_rest == drawn["Accuracy"].says[-1]
    assert drawn["What became of the responses"].says == [
        "step 1: wrong_value 0.25 · bad_syntax 0.25 · no_answer 0.5",
        "step 2: correct 0.75 · wrong_value 0.25",
        "step 3: correct 0.25 · wrong_value 0.5 · no_answer 0.25",
    ]
    assert drawn["Accuracy by number of solutions"].says == [
        "1 solutions, 2 problems: before 0 · after 0.5",
        "2-3 solutions, 1 problems: before 0 · after 1",
        "8-15 solutions, 1 problems: before 1 · after 0",
    ]
    assert drawn["Accuracy by count of numbers"].says == [
        "3 numbers, 2 problems: before 0 · after 0.5",
        "4 numbers, 2 problems: before 0.5 · after 0.5",
    ]
    # Of the base model's samples, 0 of 4 and 2 of 4 are right; the trained one's: 4 and 1.
    assert drawn["pass@k"].says == [
        "k = 1: before 0.25 · after 0.625",
        "k = 2: before 0.4167 · after 0.75",
        "k = 4: before 0.5 · after 1",
    ]


def test_the_machine_is_drawn_too(alpha_data):
    drawn = resource_charts(alpha_data)
    assert list(drawn) == ["Seconds per step", "Memory of the learner, fullest phase of the step"]
    assert drawn["Seconds per step"].says == [
        "step 1: gen 1",
        "step 2: gen 2 · update_actor 1",
        "step 3: gen 3 · update_actor 2",
    ]
    assert drawn["Memory of the learner, fullest phase of the step"].at_rest == "step 3: learner 2"


def test_a_stack_sums_up_what_is_small(alpha_data):
    rows = [
        {"step": step, "metric": f"memory/host_gib/p{i}", "value": float(10 - i)}
        for step in (1, 2)
        for i in range(8)
    ]
    rows.append({"step": 1, "metric": "disk/free_gib", "value": 7.0})
    drawn = resource_charts(replace(alpha_data, timeline=pl.DataFrame(rows)))
    assert drawn["Memory of the machine, by process"].says[0] == (
        "step 1: p0 10 · p1 9 · p2 8 · p3 7 · p4 6 · the rest 12"  # 5 + 4 + 3
    )
    assert drawn["Free disk"].says == ["step 1: free 7"]
    assert "Staleness of tokens" not in drawn


def test_a_run_whose_rollouts_were_ahead_shows_how_stale_its_tokens_were(alpha_data):
    measured = [(1, "mean", 0.0), (1, "max", 0.0), (2, "mean", 1.5), (2, "max", 2.0)]
    rows = [
        {"step": step, "metric": f"rollout/staleness_{which}", "value": value}
        for step, which, value in measured
    ]
    drawn = resource_charts(replace(alpha_data, timeline=pl.DataFrame(rows)))
    said = ["step 1: mean 0 · max 0", "step 2: mean 1.5 · max 2"]
    assert drawn["Staleness of tokens"].says == said


def test_runs_are_overlaid_with_what_each_reached():
    curve = pl.DataFrame({"step": [0, 10], "test_accuracy": [0.1, 0.4]})
    other = pl.DataFrame({"step": [0, 20], "test_accuracy": [0.1, None]})
    empty = {"accuracy": [], "score": [], "response_tokens": [], "entropy": [], "kl": []}
    filled = {
        name: frame.with_columns(pl.lit(None, pl.Float64).alias(column) for column in empty)
        for name, frame in {"one $x^{$": curve, "two": other}.items()
    }
    drawn = overlaid(filled)
    assert list(drawn) == ["Test accuracy"]
    assert drawn["Test accuracy"].says == [
        "step 0: one $x^{$ 0.1 · two 0.1",
        "step 10: one $x^{$ 0.4 · two 0.1 (step 0)",
    ]
    assert "one $x^{$" in words_of(drawn["Test accuracy"])
