"""What logs of runs that crashed tell, and a text that tells nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli.main import run_command
from tasks.report_page.failure_causes import find_failure, is_of_a_program

STEPS = "".join(f"(t pid=1) step:{i} - critic/score/mean:0.{i}\n" for i in range(1, 4))
TRACEBACK = """(t pid=1) Traceback (most recent call last):
(t pid=1)   File "/verl/workers/fsdp_workers.py", line 500, in update_actor
(t pid=1)     metrics = self.actor.update_policy(data=data)
(t pid=1) {error}
Traceback (most recent call last):
  File "main_ppo.py", line 25, in main
ray.exceptions.RayTaskError(Error): further up
"""
CASES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.34 GiB. GPU 0 has 79 GiB": (
        "the card's memory is full during update_actor, 2.34 GiB more were asked for",
        "actor.micro_batch_tokens",
    ),
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": (
        "torch has no code for this card",
        "newer CUDA",
    ),
    "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec": (
        "wandb did not answer",
        "trainer.wandb_mode=offline",
    ),
    "OSError: [Errno 28] No space left on device": ("the disk is full", "storage.root"),
    "safetensors_rust.SafetensorError: IoError(Os { code: 28, kind: StorageFull })": (
        "the disk is full",
        "storage.root",
    ),
    "ValueError: No available memory for the cache blocks. Try increasing": (
        "vLLM has no room",
        "rollout.gpu_memory_utilization",
    ),
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing": (
        "a worker of Ray died",
        "dmesg",
    ),
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0": (
        "values became NaN",
        "actor.lr",
    ),
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1": (
        "the cards lost each other",
        "NCCL_DEBUG=INFO",
    ),
    "KeyError: 'reward_model'": ("the program ended with an error", "traceback"),
}


@pytest.mark.parametrize("error", CASES)
def test_the_failure_in_a_log_becomes_the_runs_with_our_remedy(capsys, tmp_path, error):
    says, remedy = CASES[error]
    file = tmp_path / "crashed.log"
    file.write_text(STEPS + TRACEBACK.format(error=error))
    assert run_command(["import", str(file), f"storage.root={tmp_path}", "run_id=crashed"]) == 0
    printed = capsys.readouterr().out
    assert says in printed
    assert remedy in printed
    record = json.loads((tmp_path / "runs" / "crashed" / "run.json").read_text())
    assert record["status"] == "failed"
    assert says in record["reason"]
    assert remedy in record["next_step"]


@pytest.mark.parametrize("error", CASES)
def test_a_log_without_a_step_and_a_pasted_traceback_are_no_launch_script(capsys, tmp_path, error):
    file = tmp_path / "pasted.txt"
    file.write_text(TRACEBACK.format(error=error).replace("(t pid=1) ", ""))
    output = tmp_path / "preset.yaml"
    assert run_command(["import", str(file), f"output={output}", f"storage.root={tmp_path}"]) == 0
    assert CASES[error][0] in capsys.readouterr().out
    assert not output.exists()
    assert not (tmp_path / "runs").exists()


def test_an_error_that_the_run_survived_is_no_failure():
    survived = "(t pid=1) wandb: ERROR timed out\nCommError: once\n" + STEPS
    assert find_failure(survived) is None
    assert find_failure(STEPS) is None


@given(st.text(max_size=300))
def test_any_text_is_looked_at(text):
    is_of_a_program(text)
    find_failure(text)
