"""A critic that is a value head on the actor's trunk: one pass, one loss, no second backbone."""

import pytest
import torch
from torch import Tensor

from rl_core.batch import collate
from rl_core.learner.learner import Learner
from rl_core.learner.state import read_state
from tests.support.learners import (
    all_weights,
    check_that_a_resume_is_exact,
    slow_actor_gradient,
    slow_critic_gradient,
    with_distances,
)

SHARED = {"share_trunk": True, "lr": 1e-3}


def random_head(learner: Learner) -> None:
    """A head that is not 0, so that the value loss reaches the trunk."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in learner.models.critic.head.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))


def trunk_and_head(learner: Learner) -> dict[str, Tensor]:
    return all_weights(learner) | {
        f"head.{name}": x.clone() for name, x in learner.models.critic.head.state_dict().items()
    }


def test_there_is_no_second_backbone(new_learner):
    learner = new_learner(critic=SHARED, algorithm={"kl_mode": "none"})
    assert learner.models.critic.backbone is learner.models.actor.get_decoder()
    held = {
        x.data_ptr(): x.numel()
        for model in (learner.models.actor, learner.models.critic)
        for x in model.parameters()
    }
    # Tied embedding 258 x 64, 2 layers (attention 12,416 with biases, MLP 24,576, norms 128), norm.
    actor = 258 * 64 + 2 * (12_416 + 24_576 + 128) + 64
    assert sum(held.values()) == actor + 64 + 1
    assert sum(x.numel() for x in learner.optimizers["critic"].parameters) == 64 + 1
    assert sum(x.numel() for x in learner.optimizers["actor"].parameters) == actor


def test_old_log_probs_and_values_of_one_pass_are_those_of_two(new_learner, make_batch):
    shared, apart = (
        new_learner(critic={"share_trunk": share_trunk}) for share_trunk in (True, False)
    )
    random_head(shared)
    random_head(apart)
    together, metrics = shared.make_experience(make_batch())
    expected, _ = apart.make_experience(make_batch())
    assert "timing_s/values" not in metrics
    assert together.values is not None
    assert expected.values is not None
    assert torch.equal(together.old_logprobs, expected.old_logprobs)
    assert torch.equal(together.values, expected.values)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("micro_batch_tokens", [1, 32, 10_000])
def test_the_joint_gradient_is_the_sum_of_both(
    new_learner, tiny_model_path, make_batch, threads, micro_batch_tokens
):
    learner = new_learner(
        actor={
            "entropy_coef": 0.05,
            "mini_batch_size": 8,
            "micro_batch_tokens": micro_batch_tokens,
            "ppo_epochs": 2,  # so that log-probs are there before the update
        },
        critic={"share_trunk": True, "loss_coef": 0.3},
        algorithm={"kl_mode": "loss", "kl_estimator": "k3", "kl_coef": 0.1},
        resources={"learner_threads": threads},
    )
    random_head(learner)
    experience = with_distances(learner.make_experience(make_batch())[0])
    rows = list(range(8))
    policy = slow_actor_gradient(tiny_model_path, experience, rows)
    value = 0.3 * slow_critic_gradient(learner, experience, rows)
    assert policy.norm() > 0.1
    assert value[:-65].norm() > 0.01
    parameters = learner.optimizers["actor"].parameters + learner.optimizers["critic"].parameters
    learner.microbatching.run(
        "update_actor",
        experience.batch,
        lambda parts: learner.updater.accumulate(["actor", "critic"], experience, parts, 0.1),
    )
    joint = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    expected = torch.cat([policy + value[:-65], value[-65:]])
    torch.testing.assert_close(joint, expected, atol=1e-5, rtol=1e-3)


def test_the_actors_rate_moves_the_trunk_and_the_critics_the_head(new_learner, make_batch):
    for still, actor_lr, critic_lr in (("head.", 1e-3, 1e-12), ("actor.", 1e-12, 1e-3)):
        learner = new_learner(
            actor={"mini_batch_size": 8, "lr": actor_lr},
            critic={"share_trunk": True, "lr": critic_lr},
        )
        before = trunk_and_head(learner)
        metrics, _ = learner.learn(make_batch())
        assert (metrics["actor/lr"], metrics["critic/lr"]) == (actor_lr, critic_lr)
        after = trunk_and_head(learner)
        names = [name for name in before if not name.startswith("critic.")]
        far = {name for name in names if (after[name] - before[name]).abs().max() > 1e-4}
        assert far == {name for name in names if not name.startswith(still)}


PHASES = ("update_critic", "values")
"""A shared trunk has none of its own."""


def test_metrics_keep_their_names(new_learner, make_batch):
    shared, _ = new_learner(critic=SHARED).learn(make_batch())
    apart, _ = new_learner().learn(make_batch())
    kinds = ("timing_s", "memory/peak_gib", "memory/budget_tokens", "memory/oom")
    costs = {f"{kind}/{phase}" for kind in kinds for phase in PHASES}
    assert set(apart) - set(shared) == costs | {"mfu/critic"}
    assert set(shared) < set(apart)


@pytest.mark.parametrize("threads", [1, 2])
def test_during_critic_warm_up_the_head_alone_learns(new_learner, make_batch, threads):
    learner = new_learner(
        critic=SHARED | {"warmup_steps": 1}, resources={"learner_threads": threads}
    )
    before = trunk_and_head(learner)
    metrics, _ = learner.learn(make_batch())
    after = trunk_and_head(learner)
    moved = {name for name, x in after.items() if not torch.equal(x, before[name])}
    assert moved == {"head.weight", "head.bias", "critic.head.weight", "critic.head.bias"}
    assert "actor/pg_loss" not in metrics
    assert "critic/vf_loss" in metrics
    assert all(x.grad is None for x in learner.models.actor.parameters())
    metrics, _ = learner.learn(make_batch(1))
    assert "actor/pg_loss" in metrics
    assert not torch.equal(
        learner.weights()["model.norm.weight"], before["actor.model.norm.weight"]
    )


def test_the_head_learns_what_a_state_is_worth(new_learner, make_rollout):
    learner = new_learner(
        actor={"mini_batch_size": 8, "lr": 1e-4, "micro_batch_tokens": 1_000},
        critic={"share_trunk": True, "lr": 2e-2, "value_clip": 10.0},
        algorithm={"kl_mode": "none"},
    )
    rollouts = [
        make_rollout([70, 71, prompt], [80, 81], score=float(prompt == 90), group_id=row)
        for row, prompt in enumerate([90, 91] * 4)
    ]
    losses = [learner.learn(collate(rollouts, 0))[0]["critic/vf_loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(0.25)  # half of the mean of 1 and 0
    assert losses[-1] < 0.01
    values = learner.make_experience(collate(rollouts, 0))[0].values
    assert values[0::2].min() > 0.8
    assert values[1::2].max() < 0.2


@pytest.mark.parametrize(
    "sections",
    [
        {"actor": {"ppo_epochs": 2}, "critic": SHARED | {"warmup_steps": 1}},
        {"critic": SHARED, "model": {"lora_rank": 4, "gradient_checkpointing": True}},
        {
            "actor": {"mini_batch_size": 8},
            "critic": SHARED,
            "algorithm": {"kl_mode": "loss", "kl_estimator": "k3"},
        },
    ],
    ids=["warm-up", "lora", "on-policy"],
)
def test_saving_and_resuming_equals_no_stop_bit_for_bit(
    tiny_model_path, tmp_path, make_batch, settings, sections
):
    config = settings(**sections)
    check_that_a_resume_is_exact(config, tiny_model_path, tmp_path, make_batch, trunk_and_head)
    tensors, _ = read_state(tmp_path / "trainer")
    assert tensors["critic_weights.weight"].shape == (1, 64)


def test_a_critic_of_its_own_and_a_shared_trunk_do_not_resume_each_other(new_learner, tmp_path):
    new_learner(critic=SHARED).save(tmp_path)
    with pytest.raises(ValueError, match="share_trunk=true, so critic"):
        new_learner(resume_from=tmp_path)
