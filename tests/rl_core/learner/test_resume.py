from pathlib import Path

import pytest
import yaml
from torch import Tensor

from rl_core.learner.learner import Learner
from tests.support.learners import all_weights, check_that_a_resume_is_exact

RUNS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())["resumes"]


@pytest.mark.parametrize("name", RUNS)
def test_saving_and_resuming_equals_no_stop_bit_for_bit(
    tiny_model_path, tmp_path, make_batch, name, settings
):
    def weights(learner: Learner) -> dict[str, Tensor]:
        adapters = learner.models.actor.state_dict()
        return all_weights(learner) | {f"as it is: {name}": x for name, x in adapters.items()}

    config = settings(**RUNS[name])
    check_that_a_resume_is_exact(config, tiny_model_path, tmp_path, make_batch, weights)


def test_settings_that_change_with_a_resume_are_in_force(
    new_learner, tiny_model_path, tmp_path, make_batch, settings
):
    learner = new_learner(actor={"lr": 1e-3, "warmup_steps": 4})
    learner.learn(make_batch(0))
    learner.save(tmp_path)
    changed = settings(
        actor={"lr": 1e-4, "warmup_steps": 4}, critic={"lr": 2e-5}, algorithm={"kl_coef": 0.2}
    )
    resumed = Learner(changed, tiny_model_path, resume_from=tmp_path)
    for step in (2, 3, 4, 5):
        metrics, _ = resumed.learn(make_batch(step))
        assert metrics["actor/lr"] == pytest.approx(1e-4 * min(step, 4) / 4)
        assert (metrics["critic/lr"], metrics["critic/kl_coeff"]) == (2e-5, 0.2)
    resumed.save(tmp_path / "later")
    once_more = Learner(changed, tiny_model_path, resume_from=tmp_path / "later")
    assert once_more.learn(make_batch(6))[0]["actor/lr"] == 1e-4
