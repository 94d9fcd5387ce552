"""The soak: what it calls growth, and its short version over the whole pipeline."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from rl_core.checkpoints.store import list_checkpoints
from tests.support.harness import benchmark

soak = benchmark("soak")

STEPS, WARM_UP, LIMIT_S = 120, 40, 1_500


def test_theil_sen_by_hand():
    assert soak.theil_sen_slope([(0, 0), (1, 1), (2, 8)]) == 4.0  # of 1, 4 and 7
    assert soak.theil_sen_slope([(0, 5), (10, 6), (10, 8)]) == pytest.approx(0.2)  # of 0.1 and 0.3
    assert soak.theil_sen_slope([]) == soak.theil_sen_slope([(3, 1), (3, 2)]) == 0.0


def test_theil_sen_does_not_care_for_a_quarter_of_the_points():
    rng = np.random.default_rng(0)
    x = np.arange(5_000)
    y = 3.0 + 0.25 * x + rng.normal(size=len(x))
    y[rng.permutation(len(x))[: len(x) // 4]] = 1e9
    assert soak.theil_sen_slope(np.column_stack((x, y))) == pytest.approx(0.25, abs=0.02)


def looks(own_mb: Any, files: Any, cpu_s: Any) -> Any:
    """Two steps between two looks, from step 100 on."""
    steps = range(100, 500, 2)
    made = [soak.Look(s, float(s), own_mb(s), files(s), 7, cpu_s(s)) for s in steps]
    return soak.summarize("learner", made)


def test_growth_of_memory_is_a_fault_and_noise_and_jumps_are_none():
    noise = np.random.default_rng(0).normal(size=500)
    flat = looks(lambda s: 400 + 5 * noise[s], lambda s: 60 + s % 3, lambda s: 0.5 * s)
    assert flat.faults() == []
    assert flat.cpu_s_per_step == pytest.approx(0.5)
    assert flat.cpu_drift == pytest.approx(0)
    jump = looks(lambda s: 400 if s < 450 else 600, lambda s: 60, lambda s: 0.5 * s)
    assert jump.faults() == []
    leak = looks(lambda s: 400 + 0.3 * s + 5 * noise[s], lambda s: 60, lambda s: 0.5 * s)
    assert leak.mb_per_step == pytest.approx(0.3, abs=0.02)
    assert leak.faults() == [f"learner gains {leak.mb_per_step:.2f} MB per step"]


def test_files_left_open_are_a_fault_and_a_slower_step_is_seen():
    # CPU seconds per step rise from 0.5 by 0.001 per step: by 0.38 over steps 110 to 488.
    row = looks(lambda s: 400, lambda s: s // 20, lambda s: 0.5 * s + 0.0005 * (s - 100) ** 2)
    assert row.faults() == ["learner has 15 more open files than at first"]
    assert row.cpu_drift == pytest.approx(0.398 / 0.7, abs=0.02)


LEAKING = """
import sys, threading
kept = []
for line in sys.stdin:
    kept.append(bytearray(500_000 if "bytes" in sys.argv else 1_000))
    kept[-1][:] = b"x" * len(kept[-1])
    if "files" in sys.argv:
        kept.append(open("/dev/null"))
    if "threads" in sys.argv:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(flush=True)
"""


@contextmanager
def stepping(*leaks: str) -> Iterator[psutil.Popen]:
    with psutil.Popen(
        [sys.executable, "-c", LEAKING, *leaks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize(
    ("leaks", "found"),
    [
        ((), []),
        (("bytes",), ["flow gains 0.50 MB per step"]),
        (("files", "threads"), ["30 more open files", "30 more threads"]),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_a_real_process_that_leaks_is_found_out(leaks, found):
    with stepping(*leaks) as process, stepping() as server:
        watch = soak.Watch(process, server)
        for step in range(1, 41):
            process.stdin.write("\n")
            process.stdout.readline()
            watch.look(step)
    faults = soak.summarize("flow", watch.looks["flow"]).faults()
    assert len(faults) == len(found), faults
    for fault, text in zip(faults, found, strict=True):
        assert text in fault
    assert soak.summarize("server", watch.looks["server"]).faults() == []


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_many_steps_of_everything_stay_flat(tmp_path):
    """No process gains 0.2 MB per step, keeps files open or threads alive; no times are judged."""
    numbers_file = tmp_path / "numbers.json"
    command = [sys.executable, str(soak.__file__), f"--steps={STEPS}", f"--warm-up={WARM_UP}"]
    command += [f"--json={numbers_file}", f"--folder={tmp_path}"]
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.terminate()  # it ends its server and its run
    assert process.returncode == 0, said[-4_000:]
    numbers = json.loads(numbers_file.read_text())
    assert numbers["faults"] == []
    assert {"server", "flow", "trainer", "learner", "engine_0"} <= set(numbers["processes"])
    for name in ("trainer", "learner", "engine_0"):
        bounds = numbers["environments"][name]
        assert bounds == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
    # What must be bounded on the disk is: checkpoints, rollouts, the server's database.
    assert len(list_checkpoints(tmp_path / "out" / "runs" / "soak")) <= 4
    assert numbers["disk"]["of it rollouts"]["mb_last"] < 1
    assert numbers["disk"]["Prefect's database"]["mb_per_step"] < 0.2
