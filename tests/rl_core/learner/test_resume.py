"""Saving and resuming: exact, and one clear line where it cannot be."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import STATE_FOLDER, Learner
from tests.support.learners import all_weights, assert_bitwise_equal, without_timings

MakeBatch = Callable[..., TrainBatch]
MakeSettings = Callable[..., RunConfig]


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        (
            "gae",
            {
                "algorithm": {"kl_controller": "adaptive", "kl_coef": 0.05, "kl_target": 0.5},
                "actor": {"ppo_epochs": 2, "warmup_steps": 3},
                "critic": {"warmup_steps": 1},
            },
        ),
        (
            "grpo",
            {
                "algorithm": {
                    "estimator": "grpo",
                    "group_size": 2,
                    "kl_mode": "loss",
                    "kl_estimator": "k3",
                }
            },
        ),
    ],
)
def test_saving_and_resuming_equals_no_stop_bit_for_bit(
    tiny_model_path, tmp_path, make_batch, name, sections, settings
):
    config = settings(**sections)
    group_size = config.algorithm.group_size
    learner = Learner(config, tiny_model_path)
    for step in range(2):
        learner.learn(make_batch(step, group_size=group_size))
    learner.save(tmp_path)
    torch.manual_seed(123)  # whatever happened in between
    resumed = Learner(config, tiny_model_path, resume_from=tmp_path)
    assert resumed.steps_done == 2
    assert_bitwise_equal(all_weights(learner), all_weights(resumed))
    for step in range(2, 4):
        batch = make_batch(step, group_size=group_size)
        expected, expected_columns = learner.learn(batch)
        actual, columns = resumed.learn(batch)
        assert without_timings(actual) == without_timings(expected)
        np.testing.assert_array_equal(list(columns.values()), list(expected_columns.values()))
    assert_bitwise_equal(all_weights(learner), all_weights(resumed))


def test_settings_that_change_with_a_resume_are_in_force(
    tiny_model_path, tmp_path, make_batch, settings
):
    learner = Learner(settings(actor={"lr": 1e-3, "warmup_steps": 4}), tiny_model_path)
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


def test_a_checkpoint_is_a_model_folder_and_holds_no_pickle(
    tiny_model_path, tmp_path, make_batch, settings
):
    learner = Learner(settings(), tiny_model_path)
    learner.learn(make_batch())
    learner.save(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for key, tensor in learner.weights().items():
        assert torch.equal(loaded.state_dict()[key], tensor)
    suffixes = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert suffixes <= {".json", ".safetensors", ".jinja", ".txt"}


def test_what_cannot_be_resumed_is_one_clear_line(tiny_model_path, tmp_path, make_batch, settings):
    critic_free = settings(algorithm={"estimator": "grpo", "group_size": 2})
    learner = Learner(critic_free, tiny_model_path)
    learner.save(tmp_path)
    with pytest.raises(ValueError, match="saved without a critic"):
        Learner(settings(), tiny_model_path, resume_from=tmp_path)
    (tmp_path / STATE_FOLDER / "learner.json").unlink()
    with pytest.raises(ValueError, match="nothing to resume from") as error:
        Learner(critic_free, tiny_model_path, resume_from=tmp_path)
    assert "\n" not in str(error.value)
