"""Reports in a real Chromium: hostile text is never but text."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_core.evaluation.rows import write_rows
from tasks.report import write_report
from tests.support.browser import open_browser
from tests.support.runs import write_rollouts
from tests.tasks.conftest import HOSTILE

GUARD = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def text_of(page: str) -> str:
    """What a reader sees, white space squeezed; the style sheet is left out."""
    body = page[page.index("<body>") :]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def opened(page: Path) -> tuple[str, str, set[str]]:
    """Opens a page in Chromium; returns its final DOM, its errors and every URL it fetched."""
    fetched = set()
    with open_browser() as pages:
        pages.page.on("request", lambda request: fetched.add(request.url))
        pages.page.goto(page.as_uri(), wait_until="networkidle")
        return pages.page.content(), "\n".join(pages.errors), fetched - {page.as_uri()}


def poison(run: Path) -> None:
    """Writes markup that would run a script into everything that a page shows of a run."""
    rows = [
        row | {"prompt": HOSTILE, "response": HOSTILE, "answer": HOSTILE[:60], "verdict": HOSTILE}
        for file in sorted((run / "rollouts").glob("*.parquet"))
        for row in pq.read_table(file, partitioning=None).to_pylist()
    ]
    for step in (1, 2, 3):
        write_rollouts(run, [row for row in rows if row["step"] == step], step)
    evaluated = pq.read_table(run / "eval" / "evaluation.parquet").to_pylist()
    for step, verdict in ((0, HOSTILE), (3, "correct")):
        asked = {"prompt": HOSTILE, "response": f"<answer>{HOSTILE}</answer>", "answer": HOSTILE}
        truth = json.dumps({"numbers": [HOSTILE], "target": HOSTILE})
        row = evaluated[0] | asked | {"step": step, "verdict": verdict, "ground_truth": truth}
        write_rows([row], run / "held_out" / f"step_{step:06d}.parquet")
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    words = ("preset", "reason", "next_step", "model", "champion")
    record |= dict.fromkeys(words, HOSTILE) | {"run_id": HOSTILE, "made_with": {HOSTILE: HOSTILE}}
    record["own_settings"] = {HOSTILE: [HOSTILE, [HOSTILE]]}
    record["unread"] = [HOSTILE]
    record["timings_s"] = {HOSTILE: 1.0}
    record["attempts"] += [{"started_at": "2026-11-20", "reason": HOSTILE}]
    (run / "run.json").write_text(json.dumps(record))
    (run / "config.yaml").write_text(json.dumps({"note": HOSTILE}))
    (run / "log.txt").write_text(f"2026-11-20T20:00:01Z WARNING tasks.train: {HOSTILE}\n")
    line = {"step": 4, "time": "2026-11-20T20:04:00+00:00", f"memory/host_gib/{HOSTILE}": 1.0}
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps(line | {f"timing_s/{HOSTILE}": 1.0}) + "\n")


def test_all_text_is_escaped(two_runs):
    run = two_runs / "runs" / "alpha"
    poison(run)
    page = write_report(run).html.read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;document.title=") > 25


@pytest.mark.slow
def test_a_hostile_run_does_nothing_in_a_real_browser(two_runs, tmp_path):
    run = two_runs / "runs" / "alpha"
    poison(run)
    page = write_report(run).html
    dom, errors, urls = opened(page)
    assert "<title>alpha · countdown-train</title>" in dom, "the folder's name, whatever it says"
    assert "wall time" in text_of(dom)
    assert errors == ""
    assert urls == set()

    unescaped = html.unescape(page.read_text())  # as a careless template would have it
    guarded = tmp_path / "guarded.html"
    guarded.write_text(unescaped)
    dom, errors, _ = opened(guarded)
    assert not re.search(r"<title>(hacked|1)</title>", dom), "the policy stops it, too"
    assert "Content Security Policy" in errors

    careless = tmp_path / "careless.html"  # shows that the browser would have told
    careless.write_text(GUARD.sub("", unescaped) + '<img src="http://example.invalid/pixel.png">')
    dom, _, urls = opened(careless)
    assert re.search(r"<title>(hacked|1)</title>", dom)
    assert "http://example.invalid/pixel.png" in urls
