from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.prefect_ui.result_keys import is_trained


def test_a_run_is_trained_while_its_last_step_has_its_checkpoint(tmp_path):
    run = RunFolder.create(RunConfig(run_id="r", storage=StorageConfig(root=tmp_path)))
    assert not is_trained(run)
    run.metrics.append(4, {})
    assert not is_trained(run)
    save_checkpoint(run.path, 4, lambda folder: (folder / "w").touch(), None)
    assert is_trained(run)
    run.metrics.append(5, {})
    assert not is_trained(run)
