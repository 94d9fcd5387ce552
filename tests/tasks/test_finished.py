from __future__ import annotations

from pathlib import Path

from rl_core.checkpoints import save_checkpoint
from rl_core.config import RunConfig
from rl_core.tracking import RunFolder
from rl_core.upkeep_config import StorageConfig
from tasks.finished import is_trained


def test_a_run_is_trained_while_its_last_step_has_its_checkpoint(tmp_path: Path) -> None:
    run = RunFolder.create(RunConfig(run_id="r", storage=StorageConfig(root=tmp_path)))
    assert not is_trained(run)
    run.metrics.append(4, {})
    assert not is_trained(run)
    save_checkpoint(run.path, 4, lambda folder: (folder / "w").touch(), None)
    assert is_trained(run)
    run.metrics.append(5, {})
    assert not is_trained(run)
