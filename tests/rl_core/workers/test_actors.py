from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEARNER = """
import sys
from pathlib import Path

import numpy as np

from rl_core.config.run import RunConfig
from rl_core.workers.actors import LearnerActor

def own_mib():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) // 1024

model, folder = map(Path, sys.argv[1:])
learner = LearnerActor({}, folder / "learner.log")
learner.load(RunConfig(), model, None, folder / "budgets.json")
np.ones(2**23, np.uint8)  # freed: from now on glibc keeps blocks of such a size
before = own_mib()
blocks = [np.ones(2**20, np.uint8) for _ in range(600)]
last = blocks.pop()
del blocks
kept = own_mib() - before
learner.weights()
(folder / "told").write_text(f"{kept} {own_mib() - before}")
"""


@pytest.mark.slow
def test_what_one_phase_has_freed_does_not_count_in_the_next(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LEARNER, str(tiny_model_path), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + (tmp_path / "learner.log").read_text()
    kept, left = map(int, (tmp_path / "told").read_text().split())
    assert kept > 500
    assert left < 100
