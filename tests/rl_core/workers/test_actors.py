import pytest

from tests.support.programs import python

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
learner.load(RunConfig(), model, None)
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
def test_what_one_phase_has_freed_does_not_count_in_the_next(tiny_model_path, tmp_path):
    done = python(LEARNER, tiny_model_path, tmp_path, more={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr + (tmp_path / "learner.log").read_text()
    kept, left = map(int, (tmp_path / "told").read_text().split())
    assert kept > 500
    assert left < 100


SENDER = """
import sys
from pathlib import Path

import torch
from ray._private.tensor_serialization_utils import zero_copy_tensors_reducer

from rl_core.workers.actors import prepare_process

prepare_process({}, Path(sys.argv[1]))
zero_copy_tensors_reducer(torch.ones(2))
"""


def test_rays_warning_of_weights_is_no_last_word_of_a_worker(tmp_path):
    """Whoever reads why a learner died at night would take "data corruption" for the cause."""
    log = tmp_path / "learner.log"
    assert python(SENDER, log).returncode == 0
    assert log.read_text() == ""
