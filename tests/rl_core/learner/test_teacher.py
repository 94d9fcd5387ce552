"""A teacher in the learner: what it adds to the loss, to which rows, and what is measured."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.learners import (
    all_weights,
    assert_close,
    check_that_a_resume_is_exact,
    without_timings,
)

ALONE = {"estimator": "distill", "group_size": 2}
NO_BONUS = {"entropy_coef": 0.0}


@pytest.fixture(scope="session")
def teacher_path(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with other weights, with wider MLPs."""
    folder = tmp_path_factory.mktemp("teacher")
    small = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    torch.manual_seed(7)
    settings = small.config.to_dict() | {"intermediate_size": 96}
    teacher = AutoModelForCausalLM.from_config(type(small.config)(**settings))
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    teacher.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_path).save_pretrained(folder)
    return folder


def test_a_policy_comes_closer_to_its_teacher(new_learner, make_batch, teacher_path):
    learner = new_learner(algorithm=ALONE, actor=NO_BONUS, teacher={"path": str(teacher_path)})
    assert learner.models.reference is None
    assert learner.models.critic is None
    distances = []
    for _ in range(3):
        batch = make_batch(group_size=2)
        batch.rewards.zero_()  # no group has spread, and all teach
        batch.correct[:] = False
        metrics, _ = learner.learn(batch)
        distances.append(metrics["teacher/kl"])
    # Of the same tokens each time: log p - log q falls, as they get the probability of the teacher.
    assert distances[2] < distances[1] < distances[0]
    assert metrics["teacher/kl_max"] >= metrics["teacher/kl"]
    assert metrics["teacher/bounded_frac"] == 0.0
    assert metrics["critic/advantages/max"] == 0.0


def test_equal_models_teach_nothing(new_learner, make_batch, tiny_model_path):
    learner = new_learner(
        algorithm=ALONE,
        actor=NO_BONUS | {"mini_batch_size": 8},
        teacher={"path": str(tiny_model_path)},
    )
    before = all_weights(learner)
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert (metrics["teacher/kl"], metrics["teacher/kl_max"]) == (0.0, 0.0)
    assert metrics["actor/grad_norm"] == 0.0
    assert_close(all_weights(learner), before, atol=0)


def test_it_adds_to_rewards_what_it_would_teach_alone(new_learner, make_batch, teacher_path):
    """One update: the gradient of both is the sum of each one's."""
    gradients = []
    teacher = {"path": str(teacher_path), "coef": 0.5}
    reward = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
    for algorithm, given in ((reward, teacher), (reward, {}), (ALONE, teacher)):
        learner = new_learner(
            algorithm=algorithm, actor=NO_BONUS | {"mini_batch_size": 8}, teacher=given
        )
        experience, _ = learner.make_experience(make_batch(group_size=2))
        rows = [torch.arange(4), torch.arange(4, 8)]
        learner.updater.accumulate("actor", experience, rows, kl_coef=0.0)
        gradients.append(
            torch.cat([p.grad.flatten().double() for p in learner.models.actor.parameters()])
        )
    both, of_reward, of_teacher = gradients
    assert of_reward.norm() > 1e-3
    assert of_teacher.norm() > 1e-3
    torch.testing.assert_close(both, of_reward + of_teacher, atol=1e-6, rtol=1e-5)


def test_a_bound_cuts_and_is_counted(new_learner, make_batch, teacher_path):
    learner = new_learner(
        algorithm=ALONE, teacher={"path": str(teacher_path), "bound": 1e-6}, actor=NO_BONUS
    )
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert metrics["teacher/bounded_frac"] > 0.9
    assert abs(metrics["actor/pg_loss"]) < 2e-6


def test_micro_batches_and_adapters_change_nothing_of_it(new_learner, make_batch, teacher_path):
    seen = []
    for micro_batch_tokens in (16, 10_000):
        learner = new_learner(
            algorithm=ALONE,
            actor={"micro_batch_tokens": micro_batch_tokens, "mini_batch_size": 8},
            teacher={"path": str(teacher_path)},
            model={"lora_rank": 2},
        )
        metrics, _ = learner.learn(make_batch(group_size=2))
        seen.append(without_timings(metrics))
    assert seen[0] == pytest.approx(seen[1], abs=1e-5)


def test_a_resume_is_exact(settings, make_batch, tiny_model_path, teacher_path, tmp_path):
    config = settings(algorithm=ALONE, teacher={"path": str(teacher_path)})
    check_that_a_resume_is_exact(config, tiny_model_path, tmp_path / "saved", make_batch)
