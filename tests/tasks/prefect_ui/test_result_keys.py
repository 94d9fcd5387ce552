from rl_core.checkpoints.store import save_checkpoint
from tasks.prefect_ui.result_keys import is_trained
from tests.support.runs import new_run


def test_a_run_is_trained_while_its_last_step_has_its_checkpoint(tmp_path):
    run = new_run(tmp_path)
    assert not is_trained(run)
    run.metrics.append(4, {})
    assert not is_trained(run)
    save_checkpoint(run.path, 4, lambda folder: (folder / "w").touch(), None)
    assert is_trained(run)
    run.metrics.append(5, {})
    assert not is_trained(run)
