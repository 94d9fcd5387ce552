import errno
import os
from pathlib import Path

import pytest
from prefect import flow, get_client
from prefect.exceptions import TerminationSignal
from prefect.flow_engine import run_flow

from flows.runs.run_record import as_markdown, last_metrics, next_step, recorded
from flows.runs.summary import summary_lines
from rl_core.checkpoints.store import save_checkpoint
from rl_core.errors import OutOfMemory, Stalled, WorkerDied
from rl_core.runs.run_folder import RunFolder, RunRecord
from rl_core.system.disk_reserve import RESERVE_BYTES
from tests.support.faults import leave_free, mounted_small_disk
from tests.support.runs import new_run

METRICS = {"reward/accuracy": 0.25, "critic/kl": 0.01}


def saved_run(root: Path, *, checkpoint: int | None = 400) -> RunFolder:
    run = new_run(root)
    if checkpoint is not None:
        save_checkpoint(run.path, checkpoint, lambda folder: None, accuracy=None)
    return run


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            OutOfMemory("update_actor", "2.3 GiB"),
            "{again} model.gradient_checkpointing=true (resources.learner_threads=1 or checkpoints."
            "in_background=false or rollout.max_num_seqs=128 would help as well) {outcome}",
        ),
        (
            WorkerDied("engine_1", "killed?"),
            "read {run}/workers/engine_1.log, and ask `dmesg -T | grep -i 'killed process'` "
            "whether the kernel took back its memory; {same} {outcome}",
        ),
        (
            Stalled("gen", "no progress for 600 s"),
            "see in {run}/workers/*.log where every thread stood (a phase that is only slow "
            "needs a larger watchdog.stall_s); {same} {outcome}",
        ),
        (ValueError("actor.lr=-1"), "set right what the message names; {same} {outcome}"),
        (KeyboardInterrupt(), "the same command, or run_id=r, {outcome}"),
        (TerminationSignal(15), "the same command, or run_id=r, {outcome}"),
        (RuntimeError("what?"), "the end of {run}/log.txt has the error in full; {same} {outcome}"),
    ],
)
def test_each_kind_of_error_has_its_advice(tmp_path, error, advice):
    run = saved_run(tmp_path)
    words = {
        "same": "the same command, or run_id=r with other settings,",
        "again": "the same command with run_id=r",
        "outcome": "continues from step 400",
    }
    assert next_step(error, run) == advice.format(run=run.path, **words)


def test_a_run_without_a_checkpoint_starts_again(tmp_path):
    run = saved_run(tmp_path, checkpoint=None)
    assert next_step(KeyboardInterrupt(), run).endswith("run_id=r, starts it again")


def test_where_no_setting_helps_the_advice_is_a_smaller_task(tmp_path):
    run = saved_run(tmp_path)
    changes = {"checkpoints.in_background": (True, False), "rollout.max_num_seqs": (256, 8)}
    run.add_attempt("out of memory in save", changes)
    advice = next_step(OutOfMemory("save", "16 GiB"), run)
    assert advice.startswith(
        "take a smaller data.max_response_length or data.max_prompt_length or "
        "actor.optimizer=adamw_8bit in a new run or "
        "model.lora_rank=64 in a new run or more memory; "
    )
    nowhere = next_step(OutOfMemory("save", "x"), RunFolder(tmp_path / "no run"))
    assert nowhere.startswith("take a smaller data.max_response_length")


@pytest.mark.chaos
def test_a_full_disk_still_takes_the_last_words_and_says_how_much_to_free(tmp_path, survived):
    with mounted_small_disk(tmp_path, RESERVE_BYTES + 2**20) as disk:
        run = saved_run(disk)
        run.metrics.append(1, METRICS)
        leave_free(disk, 0)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"), recorded(run):
            raise full
        record = run.read()
        # 1 GiB that must stay free, 8 MiB of reserve and a checkpoint of some hundred bytes.
        assert record.next_step == (
            f"free 1.0 GiB on the disk of {run.path} (`countdown-train prune run_id=r storage.root="
            f"{disk} dry_run=true` shows what may go); the same command, or run_id=r with other "
            "settings, continues from step 400"
        )
        assert record.reason == (
            "OSError: [Errno 28] No space left on device: delete other runs or files, or set "
            "storage.root to a folder of another disk; checkpoints.keep_last=1 keeps fewer "
            "checkpoints"
        )
        assert record.last_metrics == {"step": 1, **METRICS}
        rows = [row["step"] for row in run.metrics.read()]
    survived("ENOSPC", "run.json's last words", rows_lost=len({1} - set(rows)))


def test_the_last_numbers_are_each_the_last_there_is():
    rows = [
        {"step": 1, "val/accuracy": 0.5, "critic/kl": 0.1, "memory/host_gib/learner": 3.0},
        {"step": 2, "critic/kl": None, "reward/accuracy": 0.75, "actor/lr": 1e-6},
    ]
    assert last_metrics(rows) == {
        "step": 2,
        "reward/accuracy": 0.75,
        "val/accuracy": 0.5,
        "critic/kl": 0.1,
        "memory/host_gib/learner": 3.0,
    }
    assert last_metrics([]) == {}


def test_a_failure_is_told_in_run_json_and_a_new_start_forgets_it(tmp_path):
    run = saved_run(tmp_path)
    for step in (1, 2):
        run.metrics.append(step, METRICS | {"memory/peak_gib/ref": 1.5 * step})
    with pytest.raises(RuntimeError), recorded(run):
        raise RuntimeError("no answer")
    record = run.read()
    assert record.last_metrics == {"step": 2, **METRICS, "memory/peak_gib/ref": 3.0}
    assert "what to do next: the end of" in (run.path / "log.txt").read_text()
    again = saved_run(tmp_path).read()
    assert (again.next_step, again.last_metrics) == (None, {})


def test_the_page_names_reason_advice_and_numbers_and_shows_text_as_it_is():
    record = RunRecord(
        run_id="r",
        preset="quickstart",
        status="failed",
        steps=2,
        started_at="now",
        reason="a <b> in `c`",
        next_step="do *this*",
        last_metrics={"step": 2, "critic/kl": 0.012344, "memory/peak_gib/ref": 0.5},
        host_peak_gib={"learner": 1.25, "engine_0": 0.5},
    )
    assert as_markdown(record).splitlines() == [
        "# r: failed after 2 steps",
        "",
        r"**Why:** a \<b\> in \`c\`",
        "",
        "**What to do next:** do *this*",
        "",
        "| last measured |  |",
        "|---|---:|",
        "| step | 2 |",
        "| critic/kl | 0.01234 |",
        "| memory/peak_gib/ref | 0.5 |",
        "| learner at most, GiB | 1.25 |",
        "| engine_0 at most, GiB | 0.5 |",
    ]


def test_the_table_at_the_end_names_what_retries_changed(tmp_path):
    run = saved_run(tmp_path)
    run.add_attempt("learner died")
    run.add_attempt("out of memory in gen", {"rollout.kv_cache_mib": (128, 64)})
    lines = [line for line in summary_lines(run) if line.startswith("retried")]
    assert lines == ["retried          from step 400 with rollout.kv_cache_mib=64"]


def test_the_next_seed_is_no_command_without_what_the_user_set(tmp_path):
    run = saved_run(tmp_path)
    assert summary_lines(run)[-1].split()[-2:] == ["seed=1", f"storage.root={tmp_path}"]
    run.update(own_settings={"model.path": ("a/b", "c/d")})
    assert summary_lines(run)[-1].strip() == ("the same command with seed=1, and without run_id")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_where_retry_would_fail_again_a_custom_run_is_advised(tmp_path):
    run = saved_run(tmp_path)
    advice = []

    @flow
    def fails() -> None:
        advice.append(next_step(OutOfMemory("update_actor", "2.3 GiB"), run))

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(flow_id=client.create_flow(fails), name="fails")
        run_flow(fails, flow_run=client.create_flow_run_from_deployment(deployment))
    asked = "a Custom run with the overrides run_id=r model.gradient_checkpointing=true"
    assert advice[0].startswith(f"Retry would fail again: {asked}")
