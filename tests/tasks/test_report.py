import re
import threading
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.checkpoints.pruning import prune
from rl_core.checkpoints.store import list_checkpoints, save_checkpoint
from rl_core.runs.run_folder import Attempt, RunFolder
from tasks.queries import run_tables
from tasks.report import Report, make_report, write_report
from tasks.report_page.data import gather
from tasks.report_page.page import charts
from tasks.report_page.samples import from_the_end
from tests.support.runs import new_run
from tests.tasks.report_page.test_browser import text_of


@pytest.fixture(scope="module")
def alpha(shared_runs: Path) -> tuple[Report, str]:
    """The report of the finished run, and its page."""
    report = write_report(shared_runs / "runs" / "alpha")
    return report, report.html.read_text()


def test_turns_are_told_where_a_run_has_them(alpha, shared_runs):
    text = text_of(alpha[1])
    assert "answers per response most accuracy with answers without 3 0.75 2 0.500 0.000" in text
    used = "turns responses share accuracy tokens 1 2 0.500 0.000 41 2 1 0.250 1.000 6"
    assert f"{used} 3 1 0.250 0.000 22" in text
    assert "Accuracy by turns" not in make_report(shared_runs / "runs" / "beta").page


def test_problems_without_a_number_of_solutions_get_no_table_of_it(two_runs):
    """As in GSM8K, where one row `unknown` would repeat the headline."""
    file = two_runs / "runs" / "alpha" / "eval" / "evaluation.parquet"
    rows = [row | {"num_solutions": 0} for row in pq.read_table(file).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(file)), file)
    data = gather(RunFolder(two_runs / "runs" / "alpha"))
    assert data.rows["by_num_solutions"] == []
    assert "Accuracy by number of solutions" not in charts(data)
    assert data.rows["pass_at_k"]


def test_page_tells_the_numbers_of_the_run(alpha):
    text = text_of(alpha[1])
    assert "0.250 95%: 0.046 to 0.699 → 0.500 95%: 0.150 to 0.850" in text
    # won 2, lost 1 of 4: (1 -+ 1.96 sqrt(3 - 1/4)) / 4
    assert "gain +0.250 (95%: -0.505 to +0.778), 2 problems won and 1 lost of 4, p = 1" in text
    assert "preset quickstart command countdown-train run preset=quickstart steps 3 wall" in text
    assert "best checkpoint step 2, test accuracy 0.500" in text
    assert (
        "base step_000003 accuracy 0.250 0.500 share of problems solved strict 0.250 0.250" in text
    )
    for measure in ("lenient 0.250 0.500", "maj@n 0.500 0.500", "score 0.275 0.550"):
        assert f"{measure} " in text
    assert "format 0.500 1.000 share of responses" in text
    assert "tokens 25 25 mean length" in text
    assert "champion promoted: better than its base model (p = 0.01)" in text
    one_of_2, all_of_1 = "0.095 to 0.905", "0.207 to 1.000"  # Wilson
    assert f"1 2 0.000 0.500 {one_of_2} +0.500 2-3 1 0.000 1.000 {all_of_1} +1.000" in text
    assert "8-15 1 1.000 0.000 0.000 to 0.793 -1.000" in text
    assert "base 2 0.417 0.087 0.843" in text
    assert "train 3 min 00 s evaluate 1 min 00 s generate 1 min 00 s" in text
    phases = "gen 6.0 s update_actor 3.0 s start-up and what no phase counts 2 min 51 s"
    assert phases in text
    assert "actor: lr: 0.0001" in text
    assert re.search(r"checkpoints \d+ B", text)


def test_the_headline_says_which_step_it_is_of_and_why_not_of_the_best(alpha):
    report, page = alpha
    for text in (page.replace("<code>", "`").replace("</code>", "`"), report.markdown):
        assert "Accuracy is of the last step (3)" in text
        assert "`best` is step 2, with a test accuracy of" in text
        assert "`countdown-train evaluate alpha/best` measures it on the same 4 problems" in text


def test_samples_come_from_the_end_of_training(alpha, alpha_data):
    first = [from_the_end(pl.DataFrame({"step": range(1, last + 1)})) for last in (0, 1, 4, 5, 10)]
    assert first == [0, 1, 4, 5, 9]
    shown = alpha_data.shown
    assert [(s.step, s.verdict) for s in shown["samples"]] == [
        (3, "correct"),
        (3, "wrong_value"),
        (3, "no_answer"),
    ]
    assert [(s.step, s.verdict) for s in shown["best"]] == [
        (3, "correct"),
        (3, "wrong_value"),
    ]
    assert [s.verdict for s in shown["worst"]] == ["no_answer"]  # the other is among the best
    assert "response 3.1.0" in alpha[1]


def test_the_time_has_a_price_where_the_settings_name_one(alpha, two_runs):
    assert "EUR" not in alpha[1]
    run = two_runs / "runs" / "alpha"
    (run / "config.yaml").write_text("budget: {price_per_hour: 3600, currency: EUR}\n")
    report, seconds = make_report(run), gather(RunFolder(run)).shown["seconds"]
    assert f"{seconds:.1f} EUR" in text_of(report.page)


def test_page_is_one_file_that_asks_for_nothing(alpha):
    page = alpha[1]
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert not re.findall(r"@import|url\((?!#)", page)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri" in page
    assert "<script" not in page


def test_markdown_has_headline_and_tables_but_no_model_text(alpha):
    markdown = alpha[0].markdown
    assert markdown.startswith("# alpha: finished\n")
    assert "**Greedy accuracy 0.250 → 0.500**, gain +0.250" in markdown
    assert "\npreset quickstart · 3 steps · 5 min 00 s\n" in markdown
    assert (
        "\n| solutions | problems | before | after | 95% interval | gain |\n|---|---:|" in markdown
    )
    assert "\n| 8-15 | 1 | 1.000 | 0.000 | 0.000 to 0.793 | -1.000 |\n" in markdown
    assert "\n| step_000003 | 4 | 1.000 | 0.342 | 1.000 |\n" in markdown
    assert "\n| train | 3 min 00 s |\n" in markdown
    assert "response" not in markdown


def test_no_text_of_a_record_becomes_markup_in_markdown(two_runs):
    run = RunFolder(two_runs / "runs" / "alpha")
    run.update(reason="<img src=x onerror=alert(1)> ![a](http://b)")
    markdown = make_report(run.path).markdown
    assert "img src=x" in markdown
    assert not re.search(r"<|\]\(", markdown)


def test_a_run_that_is_still_going_is_reported_as_far_as_it_is(two_runs):
    report = write_report(two_runs / "runs" / "beta")
    text = text_of(report.html.read_text())
    assert text.startswith("beta running")
    assert "0.125 before → 0.125 after" in text
    assert "wall time 30.0 s" in text
    assert "not evaluated yet" in text
    assert "wrong_value score 0.1 step 1" in text
    assert report.learning_curve_uri is not None
    last_stage = make_report(two_runs / "runs" / "beta", is_last_stage=True)
    assert text_of(last_stage.page).startswith("beta finished")
    assert last_stage.markdown.startswith("# beta: finished")


def test_a_run_without_a_step_is_reported_too(tmp_path):
    run = new_run(tmp_path, "gamma")
    changes = {"rollout.kv_cache_mib": (128, 64), "resources.offload": (False, True)}
    day, reason = "2026-11-20T20:10:00.000+00:00", "out of memory in gen"
    retry = Attempt(started_at=day, reason=reason, from_step=40, changes=changes)
    run.update(attempts=(*run.read().attempts, retry))
    why = {"reason": "<b>model folder is missing</b>", "next_step": "look for it"}
    run.update(status="failed", **why)
    report = write_report(run.path)
    text = text_of(report.html.read_text())
    assert "gamma failed <b>model folder is missing</b> What to do next: look for it" in text
    retried = "from step 40 with rollout.kv_cache_mib=64 resources.offload=true"
    assert "2 attempts faults survived 1, see below" in text
    assert f"attempt 2 out of memory in gen retried {retried}" in text
    assert f"\nattempt 2: out of memory in gen, retried {retried}\n" in report.markdown
    assert "no step has been logged yet" in text
    assert report.learning_curve_uri is None
    with pytest.raises(ValueError, match="nothing"):
        write_report(tmp_path / "runs" / "nothing")


def test_a_report_reads_a_run_that_writes_saves_and_prunes_meanwhile(two_runs):
    """ATTACK: everything that a reader lists may be gone before it is looked at."""
    run, over = RunFolder(two_runs / "runs" / "beta"), threading.Event()

    def model(folder: Path) -> None:
        (folder / "adapter").mkdir()
        for name in ("weights", "adapter/weights", "tokenizer"):
            (folder / name).write_bytes(b"x" * 1_000)

    def work() -> None:
        step = 1_000
        while not over.is_set():
            step += 1
            run.metrics.append(step, {"critic/score/mean": 0.5})
            run.rollouts.write(step, 0, [], {})
            save_checkpoint(run.path, step, model, 0.5)
            prune(run.path, keep_last=0, quota_bytes=1)
            run.update(steps=step)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(150):
            assert run_tables.bytes_by_kind(run.path)
            list_checkpoints(run.path)
        page = write_report(run.path).html.read_text()
    finally:
        over.set()
        worker.join()
    assert page.rstrip().endswith("</html>")
