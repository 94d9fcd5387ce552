import json

from rl_core.runs.run_folder import Attempt, RunFolder
from tasks.report import write_report
from tasks.report_page.failures import LoggedWarning, faults, warnings


def test_attempts_memory_and_checkpoints_are_told(two_runs):
    run = RunFolder(two_runs / "runs" / "alpha")
    first = run.read().attempts[0]
    oom, day = "out of memory", "2026-11-20"
    split = "split and done again, the result unchanged"
    changes = {"rollout.kv_cache_mib": (128, 64)}
    retry = Attempt(started_at=day, reason=f"{oom} in load_engine", from_step=2, changes=changes)
    later = Attempt(started_at=day, reason="continued", from_step=3)
    failed = Attempt(started_at=day, reason="continued after: ValueError: no file", from_step=3)
    run.update(attempts=(first, retry, later, failed))
    for step, times, budget in ((4, 0, 4096), (5, 1, 2048), (6, 2, 512)):
        name = "update_actor"
        run.metrics.append(
            step, {f"memory/oom/{name}": times, f"memory/budget_tokens/{name}": budget}
        )
    run.metrics.append(7, {"memory/oom/gen": 1, "memory/budget_seqs/gen": 128})
    for step, restarts in ((8, 0), (9, 2), (10, 1)):
        run.metrics.append(step, {"rollout/engine_restarts": restarts})
    assert list(map(str, faults(run.path, run.read()))) == [
        f"attempt 2: {oom} in load_engine, retried from step 2 with rollout.kv_cache_mib=64",
        "attempt 3: interrupted, continued from step 3",
        "attempt 4: ValueError: no file, continued from step 3",
        f"step 5: {oom} in update_actor, 3 times, {split}, 512 tokens at a time since",
        f"step 7: {oom} in gen, 1 time, {split}, 128 sequences at a time since",
        "step 9: a rollout engine died, 3 times, started again, its responses asked once more, the "
        "result unchanged",
    ]
    page = write_report(run.path).html.read_text()
    assert "<dd>6, see below</dd>" in page


def test_a_quiet_run_survived_nothing(shared_runs):
    run = RunFolder(shared_runs / "runs" / "alpha")
    assert faults(run.path, run.read()) == []
    assert warnings(run.path) == []


def test_warnings_of_the_log_are_told_once(tmp_path):
    (tmp_path / "log.txt").write_text(
        "2026-11-20T20:00:00Z INFO tasks.train: step 1\n"
        "2026-11-20T20:00:01Z WARNING rl_core.runs.rollout_log: the rollouts of step 1 were lost\n"
        "2026-11-20T20:00:02Z WARNING rl_core.runs.rollout_log: the rollouts of step 22 were lost\n"
        "2026-11-20T20:00:03Z ERROR rl_core.runs.run_folder: <b>disk</b> full\n"
        "Traceback (most recent call last):\n"
    )
    assert warnings(tmp_path) == [
        LoggedWarning("2026-11-20 20:00:01", "WARNING", "the rollouts of step 1 were lost", 2),
        LoggedWarning("2026-11-20 20:00:03", "ERROR", "<b>disk</b> full", 1),
    ]


def test_a_disk_that_was_full_is_no_quiet_run(two_runs):
    """As training writes it: see `background_save` and `rollout_log`."""
    run = RunFolder(two_runs / "runs" / "alpha")
    lost = (
        "2026-11-20T20:00:01Z WARNING rl_core.runs.rollout_log: the rollouts of step {} could not "
        "be written: [Errno 28] No space left on device\n"
    )
    (run.path / "log.txt").write_text(
        lost.format(10)
        + lost.format(11)
        + "2026-11-20T20:00:02Z WARNING rl_core.checkpoints.background_save: the disk filled up "
        "while step 10 was saved\n"
        "2026-11-20T20:00:03Z ERROR rl_core.checkpoints.background_save: step 12 was not saved "
        "(OSError: [Errno 28] No space left on device): free 3 GB; training continues\n"
    )
    assert list(map(str, faults(run.path, run.read()))) == [
        "step 10: rollouts could not be written, 2 times, left out, training continued",
        "step 10: the disk filled up during a save, 1 time, older checkpoints were deleted for it, "
        "training continued",
        "step 12: a checkpoint could not be saved, 1 time, the one before stands, "
        "training continued",
    ]


def test_settings_data_and_versions_are_on_the_page(two_runs):
    run = two_runs / "runs" / "alpha"
    record = json.loads((run / "run.json").read_text())
    record["own_settings"] = {"actor.lr": [3e-4, 1e-4], "trainer.logger": [["console"], []]}
    record["unread"] = ["critic.lr=1 has no effect"]
    record["made_with"] = {"torch": "2.13.0+cpu", "commit": "0123abcd-dirty"}
    record["data"] = "somewhere/data/tiny"
    (run / "run.json").write_text(json.dumps(record))
    page = write_report(run).html.read_text()
    assert "<td>actor.lr</td><td>0.0003</td><td><mark>0.0001</mark></td>" in page
    assert "<td>trainer.logger</td><td>[console]</td><td><mark>[]</mark></td>" in page
    assert "<dd>critic.lr=1 has no effect</dd>" in page
    assert "torch <b>2.13.0+cpu</b>" in page
    assert "commit <b>0123abcd-dirty</b>" in page
    assert "<h3>Data tiny</h3>" in page
    assert "<code>abc</code>" in page
