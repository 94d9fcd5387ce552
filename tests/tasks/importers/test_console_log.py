import json
import os
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.diagnosis import diagnose
from tasks.importers.console_log import import_log, other_trainer, read_log, read_text
from tasks.importers.launch_script import import_script
from tasks.queries.sql import ask
from tasks.report import write_report
from tasks.report_page.failures import find_failure

LOG = """(main_task pid=3107) wandb: offline
(main_task pid=3107) step:0 - val/test_score/countdown:0.030
\x1b[36m(t pid=37)\x1b[0m step:1 - critic/kl:-0.001 - critic/score/mean:0.036 - timing_s/step:9
(main_task pid=3107) step:2 - critic/kl:nan - critic/score/mean:0.040 - timing_s/step:9.000
(task pid=37) step:2 - critic/kl:2e-3 - critic/score/mean:np.float64(0.05) - actor/entropy:0.7
[36m(main_task pid=3107) step:3 - critic/score/mean:6e-02 - timing_s/step:8.500 - critic/k
"""


def test_steps_are_read_as_verl_prints_them():
    assert read_log(LOG).rows == {
        0: {"val/test_score/countdown": 0.03, "val/score": 0.03},
        1: {"critic/kl": -0.001, "critic/score/mean": 0.036, "timing_s/step": 9.0},
        2: {"critic/kl": 0.002, "critic/score/mean": 0.05, "actor/entropy_loss": 0.7},
        3: {"critic/score/mean": 0.06, "timing_s/step": 8.5},
    }


def test_a_test_of_todays_verl_and_any_numpy_number_are_read():
    log = (
        "(TaskRunner pid=9) step:5 - val-core/a/reward/mean@1:np.float64(0.5) - "
        "val-core/b/reward/mean@1:0.25 - val-core/b/acc/mean@1:np.float32(0.75) - "
        "val-core/b/reward/best@4/mean:0.9 - val-aux/num_turns/max:np.int32(2) - n:np.int64(-3)\n"
    )
    (row,) = read_log(log).rows.values()
    assert (row["val/score"], row["val/accuracy"]) == (0.375, 0.75)
    assert (row["val-aux/num_turns/max"], row["n"]) == (2.0, -3.0)


@pytest.fixture
def imported(tmp_path):
    """The run that a log's lines become."""

    def run(lines: Iterable[str]) -> RunFolder:
        (file := tmp_path / "verl.log").write_text("".join(f"{line}\n" for line in lines))
        os.utime(file, (1_700_000_000, 1_700_000_000))
        return import_log(file, root=tmp_path, run_id="imported")

    return run


def test_values_that_are_no_numbers_are_told_with_the_step_where_they_begin(imported):
    run = imported(
        f"step:{i} - actor/grad_norm:{'nan' if i > 6 else 0.2} - actor/pg_loss:"
        f"{'-inf' if i > 7 else 0.1} - critic/score/mean:{0.0 if i > 7 else 0.3 + i / 100}"
        for i in range(1, 13)
    )
    found = {one.rule: str(one) for one in diagnose(run.metrics.read())}
    assert "from step 7 on" in found["not_finite"]
    assert "(actor/grad_norm is nan or inf there)" in found["not_finite"]
    assert "the score fell to 0 at step 8 and stayed there" in found["score_lost"]


@pytest.mark.parametrize("score", [-1.0, 1.0, 0.5])
def test_a_score_that_never_changes_is_a_finding(imported, score):
    run = imported(f"step:{i} - critic/score/mean:{score}" for i in range(1, 13))
    (found,) = diagnose(run.metrics.read())
    assert found.rule == "reward_always_same"
    assert f"critic/score/mean is {score:g} in all 12 steps" in found.evidence


def test_logs_of_other_trainers_are_known():
    trl = "some line\n{'loss': 0.01, 'grad_norm': 1.2, 'rewards/acc': 0.4, 'reward': 0.5}\n"
    openrlhf = "Train epoch [1/1]: 50%|##| 4/8 [00:01<00:01, policy_loss=0.01, act_lr=1e-6]"
    assert [other_trainer(log, "log") for log in (trl, openrlhf, LOG)] == ["TRL", "OpenRLHF", None]


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    read_log(text)


def test_a_log_becomes_a_run_for_sql_report_and_diagnosis(imported, tmp_path):
    """The diary's 170 steps, as TinyZero printed such: no accuracy, only score and length."""
    lines = [
        f"step:{i} - critic/score/mean:{0.036 + 0.083 * i / 170:.4f} - response_length/mean:"
        f"{181 - 123 * i / 170:.1f} - actor/pg_clipfrac:0.000 - timing_s/step:8.976"
        for i in range(1, 171)
    ]
    run = imported(lines)
    record = json.loads((run.path / "run.json").read_text())
    assert (record["steps"], record["status"]) == (170, "finished")
    assert record["started_at"] == "2023-11-14T21:48:03.056+00:00"  # 169 steps before the end
    curve = ask("learning_curve", root=tmp_path, run="imported")
    assert curve.height == 170
    assert curve["score"][-1] == pytest.approx(0.119)
    found = [one.rule for one in diagnose(run.metrics.read())]
    assert found == ["format_credit_only", "length_collapse", "never_clipped"]
    page = write_report(run.path).html.read_text()
    assert "the model learns the answer tag, not the task" in page

    with pytest.raises(ValueError, match="exists already"):
        imported(lines)


def test_a_file_without_steps_is_refused(imported, tmp_path):
    with pytest.raises(ValueError, match="holds no line like step:2"):
        imported(["nothing happened"])
    assert not (tmp_path / "runs").exists()


def test_the_file_of_verls_own_logger_is_read(tmp_path):
    rows = [
        {"step": i, "data": {"critic/score/mean": i / 10, "actor/entropy": 1.0}} for i in (1, 2)
    ]
    log = read_log("".join(f"{json.dumps(row)}\n" for row in rows))
    assert log.rows[2] == {"critic/score/mean": 0.2, "actor/entropy_loss": 1.0}
    for broken in (
        '{"step": 1',
        '{"step": 1, "data": 3}',
        '{"step": "1", "data": {}}',
        "[" * 9_000,
    ):
        assert read_log(broken).runs == []
        assert read_log(f'{{"step": {broken}').runs == []


def test_of_two_runs_in_a_file_the_last_is_taken():
    steps = [*range(11), *range(5)]
    log = read_log("".join(f"step:{s} - x:{i}\n" for i, s in enumerate(steps)))
    assert [sorted(run) for run in log.runs] == [[*range(11)], [*range(5)]]
    in_turns = "".join(f"(t pid={p}) step:{s} - x:{p}{s}\n" for s in range(3) for p in (7, 8))
    assert [list(run.values()) for run in read_log(in_turns).runs] == [
        [{"x": 70.0}, {"x": 71.0}, {"x": 72.0}],
        [{"x": 80.0}, {"x": 81.0}, {"x": 82.0}],
    ]
    resumed = "".join(f"step:{s} - x:{i}\n" for i, s in enumerate((0, 1, 2, 3, 4, 3, 4, 5)))
    assert len(read_log(resumed).runs) == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_of_another_encoding_is_read(tmp_path, encoding):
    (file := tmp_path / "night.log").write_text("step:3 - x:0.5\n", encoding=encoding)
    assert read_log(read_text(file)).rows == {3: {"x": 0.5}}
    file.write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=8", encoding=encoding)
    findings = map(str, import_script(read_text(file)).findings)
    assert [one for one in findings if "save it as UTF-8 without a mark" in one]


def test_numbers_as_torch_and_people_write_them_are_read_and_others_are_named():
    log = read_log(
        "step:1 - a:tensor(0.5) - b:1,234.5 - c:np.float64(2) - e:tensor([3.], device='cuda:0') - "
        "f:None - g:12:30 - h:tensor(nan)\n"
    )
    read = {"a": 0.5, "b": 1234.5, "c": 2.0, "e": 3.0, "not_finite/h": 1.0}
    assert log.rows[1] == read
    assert log.unread == {"f": "None", "g": "12:30"}


@pytest.mark.parametrize(
    "text",
    [
        *("{'loss': " * 12_000, " policy_loss=" * 8_000, "wandb" * 20_000, "skyrl" * 20_000),
        *("step:1 - x:" + "1" * 500_000 + "x", "step:1 - x:" + "1," * 250_000, "a." * 50_000),
        *(("wandb" * 400 + "\n") * 100, ("grad" * 500 + "\n") * 100, ("a." * 999 + "\n") * 100),
    ],
    ids=lambda text: text[:12],
)
def test_hostile_logs_cost_little(text):
    start = time.process_time()
    read_log(text)
    other_trainer(text, "log")
    other_trainer(text, "script")
    find_failure(text)
    assert time.process_time() - start < 5
