"""wandb for real: in processes of their own, since it leaves services, hooks and variables."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_core.config import RunConfig, TrainerConfig
from rl_core.wandb_tracker import WandbTracker

_CHILD = """
import json, logging, os, socket, sys, time
from pathlib import Path

folder, mode, server = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
if server == "closed":
    listener.close()
os.environ |= {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": "0" * 40}
logging.basicConfig(filename=folder / "said.txt")

from rl_core import wandb_tracker
from rl_core.config import RunConfig, TrainerConfig

wandb_tracker.START_TIMEOUT_S = 2.0
wandb_tracker.FINISH_TIMEOUT_S = 60.0 if mode == "offline" else 2.0
run = folder / "my-run"
run.mkdir()
slowest = 0.0
config = RunConfig(trainer=TrainerConfig(logger=("wandb",), wandb_mode=mode))
with wandb_tracker.WandbTracker(config, run) as tracker:
    for step in range(1, 40):
        before = time.perf_counter()
        tracker.on_step(step, 39, {"critic/score/mean": step / 100})
        slowest = max(slowest, time.perf_counter() - before)
        time.sleep(float(sys.argv[4]))
print(json.dumps({"slowest": slowest}))
"""


def run_child(folder: Path, mode: str, server: str, step_s: float) -> tuple[dict[str, float], str]:
    process = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), mode, server, str(step_s)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    found: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return found, (folder / "said.txt").read_text()


def logged_scores(run: Path) -> list[float]:
    """The scores in the file that `wandb sync` would upload.

    A LevelDB log: after 7 bytes of its own, records of checksum (4 bytes), length (2), type (1) and
    data; a file below 32 KiB has them whole.
    """
    from wandb.proto import wandb_internal_pb2

    (file,) = run.glob("wandb/offline-run-*-my-run/run-my-run.wandb")
    data = file.read_bytes()
    assert len(data) < 2**15
    scores, at = [], 7
    while at < len(data):
        (length,) = struct.unpack_from("<H", data, at + 4)
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        for item in record.history.item:
            if "critic/score/mean" in (item.key, *item.nested_key):
                scores.append(json.loads(item.value_json))
    return scores


def test_offline_it_writes_into_the_run_folder_what_sync_uploads(tmp_path: Path) -> None:
    found, said = run_child(tmp_path, "offline", "closed", 0.01)
    assert said == ""
    assert logged_scores(tmp_path / "my-run") == [i / 100 for i in range(1, 40)]
    assert found["slowest"] < 0.05


@pytest.mark.slow
def test_an_unreachable_server_costs_a_warning_and_no_time(tmp_path: Path) -> None:
    found, said = run_child(tmp_path, "online", "closed", 0.2)
    assert found["slowest"] < 0.05
    assert said.count("wandb is offline in this run: Failed to get resume status") == 1
    assert said.count("\n") == 1
    assert logged_scores(tmp_path / "my-run") == [i / 100 for i in range(1, 40)]


@pytest.mark.slow
def test_a_server_that_never_answers_costs_a_warning_and_no_time(tmp_path: Path) -> None:
    before = time.monotonic()
    found, said = run_child(tmp_path, "online", "silent", 0.1)
    assert found["slowest"] < 0.05
    assert said.count("wandb is offline in this run") <= 1
    assert 1 <= said.count("\n") <= 2
    assert time.monotonic() - before < 60


def test_a_run_that_ends_before_wandb_has_started_ends_in_time(tmp_path: Path) -> None:
    before = time.monotonic()
    found, said = run_child(tmp_path, "online", "closed", 0.0)
    assert found["slowest"] < 0.05
    assert "metrics.jsonl has them all" in said or "wandb is offline in this run" in said
    assert time.monotonic() - before < 60


def test_without_wandb_in_the_settings_nothing_starts(tmp_path: Path) -> None:
    with WandbTracker(RunConfig(trainer=TrainerConfig(logger=("console",))), tmp_path) as tracker:
        tracker.on_step(1, 2, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []
    code = "import sys, rl_core.wandb_tracker; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
