from __future__ import annotations

import asyncio
import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prefect import get_client
from prefect.testing.utilities import prefect_test_harness

from rl_core.tracking import RunFolder
from tasks.report import Report, report_task, write_report
from tasks.report_charts import PALETTE, charts, learning_curve_uri
from tasks.report_data import ReportData, cut_around_answer, gather

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def alpha(shared_runs: Path) -> tuple[Report, str]:
    """The report of the finished run, and its page."""
    report = write_report(shared_runs / "runs" / "alpha")
    return report, report.html.read_text()


@pytest.fixture(scope="module")
def alpha_data(shared_runs: Path) -> ReportData:
    return gather(shared_runs / "runs" / "alpha")


def text_of(page: str) -> str:
    """What a reader sees, white space squeezed; the style sheet is left out."""
    body = page[page.index("<body>") :]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_page_tells_the_numbers_of_the_run(alpha: tuple[Report, str]) -> None:
    text = text_of(alpha[1])
    assert "0.250 95%: 0.046 to 0.699 → 0.500 95%: 0.150 to 0.850" in text
    # won 2, lost 1 of 4: (1 -+ 1.96 sqrt(3 - 1/4)) / 4
    assert "gain +0.250 (95%: -0.563 to +1.063), 2 problems won and 1 lost of 4" in text
    assert "preset quickstart steps 3 wall time 5 min 00 s" in text
    assert "best checkpoint step 2, test accuracy 0.500" in text
    assert "base 0.250 0.275 0.500 25 step_000003 0.500 0.550 1.000 25" in text
    assert "1 2 0.000 0.500 +0.500 2-3 1 0.000 1.000 +1.000 8-15 1 1.000 0.000 -1.000" in text
    assert "base 2 0.417 0.000 1.000" in text
    assert "train 3 min 00 s evaluate 1 min 00 s generate 1 min 00 s" in text
    assert "gen 6.0 s update_actor 3.0 s" in text
    assert "actor: lr: 0.0001" in text
    assert re.search(r"checkpoints \d+ B", text)


def test_samples_come_from_the_end_of_training(
    alpha: tuple[Report, str], alpha_data: ReportData
) -> None:
    assert [(s.step, s.verdict) for s in alpha_data.samples] == [
        (3, "correct"),
        (3, "wrong_value"),
        (3, "no_answer"),
    ]
    assert "response 3.1.0" in alpha[1]


@pytest.mark.parametrize(
    ("response", "answer", "parts"),
    [
        ("a <answer>1 + 2</answer>", "1 + 2", ("a <answer>", "1 + 2", "</answer>")),
        (
            "<answer>1</answer> no <answer> 2 </answer> 2",
            "2",
            ("<answer>1</answer> no <answer>", " 2 ", "</answer> 2"),
        ),
        ("so 18 and 18 #### 18.", "18", ("so 18 and 18 #### ", "18", ".")),
        ("<answer>never closed", None, ("<answer>never closed", "", "")),
        ("the answer lies elsewhere", "7", ("the answer lies elsewhere", "", "")),
    ],
)
def test_response_is_cut_around_the_scored_answer(
    response: str, answer: str | None, parts: tuple[str, str, str]
) -> None:
    assert cut_around_answer(response, answer) == parts


@given(st.text(alphabet="<answer>/ 12", max_size=80), st.none() | st.text(max_size=3))
@example("</answer><answer>", "1")
def test_cutting_loses_nothing_of_a_short_response(response: str, answer: str | None) -> None:
    assert "".join(cut_around_answer(response, answer)) == response


def test_long_responses_are_shortened_around_the_answer() -> None:
    before, answer, after = cut_around_answer(
        "x" * 50_000 + "<answer>1</answer>" + "y" * 50_000, "1"
    )
    assert answer == "1"
    assert before.endswith("xxx<answer>")
    assert after.startswith("</answer>yyy")
    assert 3_000 < len(before) + len(after) < 10_000


def test_model_text_and_settings_are_escaped(two_runs: Path) -> None:
    run = two_runs / "runs" / "alpha"
    (run / "config.yaml").write_text("note: </pre><script>alert(1)</script>\n")
    for file in (run / "rollouts").glob("step_00000[13].parquet"):
        file.unlink()  # leaves step 2, which holds the hostile response
    page = write_report(run).html.read_text()
    assert "&lt;script&gt;document.title=" in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "<img" not in page


def test_page_is_one_file_that_asks_for_nothing(alpha: tuple[Report, str]) -> None:
    page = alpha[1]
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert not re.findall(r"@import|url\((?!#)", page)
    assert """content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">""" in page


def test_charts_take_every_colour_from_the_page(
    alpha: tuple[Report, str], alpha_data: ReportData
) -> None:
    page = alpha[1]
    light = dict(re.findall(r"--([\w-]+): (#\w+)", page[: page.index("@media")]))
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    assert used <= set(light)
    assert {"ink", "grid", "test", "correct", "no-answer"} <= used
    for svg in charts(alpha_data).values():
        assert not re.findall("|".join(PALETTE.values()), svg)
        colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert colours <= {"#000000"}, "a colour that dark mode cannot change"


def test_charts_show_the_logged_steps(alpha_data: ReportData) -> None:
    drawn = charts(alpha_data)
    assert list(drawn) == [
        "Accuracy",
        "What became of the responses",
        "Score, with format credit",
        "Response length",
        "Accuracy by number of solutions",
        "pass@k",
    ]  # no KL and no entropy were logged
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert root.get("viewBox")
        assert root.get("width") is None
    words = {node.text for node in ElementTree.fromstring(drawn["Accuracy"]).iter(f"{SVG}text")}
    assert {"train, sampled", "test, greedy", "share solved"} <= words
    verdicts = ElementTree.fromstring(drawn["What became of the responses"])
    words = {node.text for node in verdicts.iter(f"{SVG}text")}
    assert {"correct", "wrong_value", "bad_syntax", "no_answer"} <= words


def test_learning_curve_stands_alone_and_is_reproducible(alpha_data: ReportData) -> None:
    uri = learning_curve_uri(alpha_data)
    assert uri is not None
    assert uri == learning_curve_uri(alpha_data)
    kind, _, content = uri.partition(";base64,")
    assert kind == "data:image/svg+xml"
    svg = base64.b64decode(content).decode()
    assert "var(--" not in svg
    words = {node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert "accuracy of alpha" in words


def test_markdown_has_headline_and_tables_but_no_model_text(alpha: tuple[Report, str]) -> None:
    markdown = alpha[0].markdown
    assert markdown.startswith("# alpha: finished\n")
    assert "**Greedy accuracy 0.250 → 0.500**, gain +0.250" in markdown
    assert "\npreset quickstart · 3 steps · 5 min 00 s\n" in markdown
    assert "\n| solutions | problems | before | after | gain |\n|---|---:|" in markdown
    assert "\n| 8-15 | 1 | 1.000 | 0.000 | -1.000 |\n" in markdown
    assert "\n| step_000003 | 4 | 1.000 | 1.000 to 1.000 |\n" in markdown
    assert "\n| train | 3 min 00 s |\n" in markdown
    assert "response" not in markdown


def test_a_run_that_is_still_going_is_reported_as_far_as_it_is(two_runs: Path) -> None:
    report = write_report(two_runs / "runs" / "beta")
    text = text_of(report.html.read_text())
    assert text.startswith("beta running")
    assert "0.125 before → 0.125 after" in text
    assert "wall time 30.0 s" in text
    assert "not evaluated yet" in text
    assert "wrong_value score 0.1 step 1" in text
    assert report.learning_curve_uri is not None


def test_the_last_stage_of_a_run_calls_it_finished(two_runs: Path) -> None:
    report = write_report(two_runs / "runs" / "beta", is_last_stage=True)
    assert text_of(report.html.read_text()).startswith("beta finished")
    assert report.markdown.startswith("# beta: finished")


def test_a_run_without_a_step_is_reported_too(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "gamma"
    run.mkdir(parents=True)
    record = {
        "run_id": "gamma",
        "preset": "quickstart",
        "status": "failed",
        "reason": "<b>model folder is missing</b>",
        "started_at": "2026-11-20T20:00:00.000+00:00",
    }
    (run / "run.json").write_text(json.dumps(record))
    report = write_report(run)
    text = text_of(report.html.read_text())
    assert "gamma failed <b>model folder is missing</b>" in text
    assert "no step has been logged yet" in text
    assert report.learning_curve_uri is None
    with pytest.raises(ValueError, match="nothing"):
        write_report(tmp_path / "runs" / "nothing")


def dump_dom(page: Path, folder: Path) -> tuple[str, str, set[str]]:
    """Opens a page in Chromium; returns its final DOM, its console and every URL it fetched."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser, "these tests need Chromium: apt-get install chromium"
    folder.mkdir()
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={folder / 'net.json'}",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    requests = re.findall(
        r'"initiator":"([^"]+)".*?"url":"([^"]+)"', (folder / "net.json").read_text()
    )  # the browser's own requests (updates, clock) have no origin
    return done.stdout, console, {url for origin, url in requests if origin != "not an origin"}


@pytest.mark.slow
def test_a_real_browser_runs_and_fetches_nothing(two_runs: Path, tmp_path: Path) -> None:
    run = two_runs / "runs" / "alpha"
    for file in (run / "rollouts").glob("step_00000[13].parquet"):
        file.unlink()  # leaves step 2, which holds the hostile response
    page = write_report(run).html
    dom, console, urls = dump_dom(page, tmp_path / "report")
    assert "<title>alpha · countdown-train</title>" in dom
    assert "wall time" in text_of(dom)
    assert console == ""
    assert urls == set()

    careless = tmp_path / "careless.html"  # shows that the browser would have told
    guard = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    unescaped = html.unescape(guard.sub("", page.read_text()))
    careless.write_text(unescaped + '<img src="http://example.invalid/pixel.png">')
    dom, console, urls = dump_dom(careless, tmp_path / "careless")
    assert re.search(r"<title>(hacked|1)</title>", dom)
    assert "http://example.invalid/pixel.png" in urls


@pytest.mark.slow
def test_task_shows_the_report_in_the_prefect_ui(two_runs: Path) -> None:
    async def read() -> dict[str | None, tuple[str | None, object]]:
        async with get_client() as client:
            return {a.key: (a.type, a.data) for a in await client.read_artifacts()}

    with prefect_test_harness(server_startup_timeout=120):
        page = report_task(RunFolder(two_runs / "runs" / "alpha"))
        artifacts = asyncio.run(read())
    assert page == two_runs / "runs" / "alpha" / "report.html"
    kind, markdown = artifacts["report"]
    assert kind == "markdown"
    assert "**Greedy accuracy 0.250 → 0.500**" in str(markdown)
    kind, uri = artifacts["learning-curve"]
    assert kind == "image"
    assert uri == learning_curve_uri(gather(two_runs / "runs" / "alpha"))
