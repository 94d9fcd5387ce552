import pytest
import torch
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.learner.experience import Experience
from rl_core.learner.learner import STATE_FOLDER, Learner
from rl_core.learner.state import read_state
from rl_core.learner.update import Updater
from rl_core.models.forward import TokenOutputs
from tests.support.learners import (
    all_weights,
    assert_bitwise_equal,
    assert_close,
    slow_actor_gradient,
    slow_critic_gradient,
    with_distances,
    without_timings,
)


def experience_of(learner: Learner, batch: TrainBatch) -> Experience:
    """With values, though they would come from the critic's only update."""
    experience, _ = learner.make_experience(batch)
    assert experience.values is None
    values = passes(learner, experience, "critic")
    return experience.with_advantages(values, learner.config.algorithm)


def passes(learner: Learner, experience: Experience, which: str) -> Tensor:
    """Log-probs or values of one mini-batch, all rows, whose gradient is then in `.grad`."""
    return learner.microbatching.run(
        "update",
        experience.batch,
        lambda parts: learner.updater.accumulate(which, experience, parts, kl_coef=0.1),
    )[1]


def accumulated(learner: Learner, experience: Experience, which: str) -> Tensor:
    """The gradient of one mini-batch alone, all rows, flattened, whatever `.grad` was before."""
    model = learner.models.actor if which == "actor" else learner.models.critic
    passes(learner, experience, which)
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("which", ["actor", "critic"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_splitting_into_micro_batches_changes_no_gradient(
    new_learner, make_batch, group_size, which, aggregation
):
    gradients = []
    for micro_batch_tokens in (1, 23, 50, 10_000):
        actor = {"micro_batch_tokens": micro_batch_tokens, "loss_aggregation": aggregation}
        learner = new_learner(
            actor=actor | {"mini_batch_size": 8, "entropy_coef": 0.01},
            algorithm={"kl_mode": "loss", "kl_estimator": "k2", "kl_coef": 0.1},
        )
        experience = experience_of(learner, make_batch(group_size=group_size))
        gradients.append(accumulated(learner, experience, which))
    unsplit = gradients.pop()
    assert unsplit.norm() > 1e-3
    for split in gradients:
        assert (split - unsplit).norm() / unsplit.norm() < 1e-6


@pytest.mark.parametrize("which", ["actor", "critic"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_responses_cut_off_teach_nothing_where_they_are_masked(
    new_learner, make_batch, which, aggregation
):
    batch = make_batch()
    batch.truncated[[1, 4, 5]] = True
    learner = new_learner(
        actor={"mini_batch_size": 8, "loss_aggregation": aggregation, "entropy_coef": 0.01},
        algorithm={"kl_mode": "none", "mask_truncated": True},
    )
    experience = experience_of(learner, batch)
    whole = accumulated(learner, experience, which)
    others = accumulated(learner, experience.select(torch.tensor([0, 2, 3, 6, 7])), which)
    assert whole.norm() > 1e-3
    assert (whole - others).norm() / whole.norm() < 1e-6
    batch.truncated[:] = True
    experience = experience_of(learner, batch)
    assert not learner.updater.teaches(which, experience).any()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_groups_that_teach_nothing_have_no_backward_pass(
    new_learner, make_batch, monkeypatch, num_threads
):
    """Equal to a backward pass over all; if none teaches, no optimizer step moves the weights."""
    batches = [make_batch(seed, group_size=2) for seed in range(3)]
    outcomes = ([0, 0, 1, 0, 1, 0, 1, 1], [0, 1, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1])
    for batch, each in zip(batches, outcomes, strict=True):
        batch.rewards.copy_(torch.tensor(each))
        batch.correct.copy_(torch.tensor(each) > 0)

    def learned() -> tuple[list[list[int]], dict[str, Tensor], list[dict[str, float]]]:
        learner = new_learner(
            actor={"mini_batch_size": 4, "micro_batch_tokens": 64, "entropy_coef": 0.0},
            algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
            resources={"learner_threads": num_threads},
        )
        backward, metrics, forward = [], [], learner.updater._forward

        def spy(batch: TrainBatch, **models: object) -> TokenOutputs:
            if torch.is_grad_enabled():
                backward[-1] += batch.group_ids.tolist()
            return forward(batch, **models)

        monkeypatch.setattr(learner.updater, "_forward", spy)
        for batch in batches:
            backward.append([])
            metrics.append(without_timings(learner.learn(batch)[0]))
            if batch is batches[1]:
                taught = all_weights(learner)
        if metrics[2]["actor/skipped_steps"]:
            assert metrics[2]["actor/grad_norm"] == 0.0
            assert_bitwise_equal(all_weights(learner), taught)
            assert learner.optimizers["actor"].schedule_state()["last_epoch"] == 3
        # Attention does not depend on a key's bias: its gradient is rounding, which Adam enlarges.
        weights = {k: x for k, x in taught.items() if not k.endswith("k_proj.bias")}
        return [sorted(set(groups)) for groups in backward], weights, metrics

    groups, weights, metrics = learned()
    assert groups == [[1, 2], [0], []]
    assert [one["actor/skipped_steps"] for one in metrics] == [0, 0, 1]
    monkeypatch.setattr(Updater, "teaches", lambda *_: torch.ones(8, dtype=torch.bool))
    groups, same_weights, same_metrics = learned()
    assert groups == [[0, 1, 2, 3]] * 3
    assert_close(weights, same_weights, atol=1e-5)
    for one, other in zip(metrics[:2], same_metrics, strict=False):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_each_mini_batch_moves_along_the_gradient_of_its_own_loss(
    new_learner, tiny_model_path, tmp_path, make_batch
):
    """Against a slow loop over transformers' logits, with every term of the loss at work."""
    learner = new_learner(
        actor={"entropy_coef": 0.05, "lr": 1e-12},
        critic={"lr": 1e-12},
        algorithm={"kl_mode": "loss", "kl_estimator": "k2", "kl_coef": 0.1},
    )
    experience, _ = learner.make_experience(make_batch())
    experience = with_distances(experience)  # ratios near 1 and beyond the clip
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    actor = [slow_actor_gradient(tiny_model_path, experience, rows) for rows in halves]
    critic = [slow_critic_gradient(learner, experience, rows) for rows in halves]
    _, metrics = learner.updater.update(experience, kl_coef=0.1, actor_learns=True)
    for name, gradients in (("actor", actor), ("critic", critic)):
        norms = [gradient.norm().item() for gradient in gradients]
        assert abs(norms[0] - norms[1]) > 1e-3
        assert metrics[f"{name}/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    # Norms could agree by accident: the first moments, a tenth of the last gradient, could not.
    learner.save(tmp_path)
    moments = read_state(tmp_path / STATE_FOLDER)[0]
    names = [name for name, _ in learner.models.actor.named_parameters()]
    # Two steps leave 0.1 g2 + 0.09 g1, each clipped to norm 1.
    clipped = [gradient / max(gradient.norm().item(), 1.0) for gradient in actor]
    torch.testing.assert_close(
        torch.cat([moments[f"actor.{name}.exp_avg"].flatten() for name in names]),
        0.1 * clipped[1] + 0.09 * clipped[0],
        atol=1e-6,
        rtol=1e-3,
    )
