"""What tests of the learner compare, and slow ways to its gradients."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.experience import Experience
from rl_core.learner.learner import Learner

COSTS = ("timing_s/", "memory/", "mfu/")


def without_timings(metrics: dict[str, float]) -> dict[str, float]:
    return {name: x for name, x in metrics.items() if not name.startswith(COSTS)}


def all_weights(learner: Learner) -> dict[str, Tensor]:
    weights = {f"actor.{name}": x.clone() for name, x in learner.weights().items()}
    if learner.models.critic is not None:
        weights |= {f"critic.{k}": x.clone() for k, x in learner.models.critic.state_dict().items()}
    return weights


def assert_bitwise_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert {x: float((one[x] - other[x]).abs().max()) for x in differing} == {}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], atol: float) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            actual[name], tensor, atol=atol, rtol=0, msg=lambda m, name=name: f"{name}: {m}"
        )


def check_that_a_resume_is_exact(
    config: RunConfig,
    folder: Path,
    saved: Path,
    make_batch: Callable[..., TrainBatch],
    weights: Callable[[Learner], dict[str, Tensor]] = all_weights,
) -> None:
    """Two steps, a save, and two steps more: a resumed learner does these alike, bit for bit."""
    batches = [make_batch(step, group_size=config.algorithm.group_size) for step in range(4)]
    learner = Learner(config, folder)
    learner.reserve_snapshot()
    for batch in batches[:2]:
        learner.learn(batch)
    learner.save(saved)
    torch.manual_seed(123)  # whatever happened in between
    resumed = Learner(config, folder, resume_from=saved)
    assert resumed.steps_done == 2
    assert_bitwise_equal(weights(learner), weights(resumed))
    for batch in batches[2:]:
        expected, expected_columns = learner.learn(batch)
        actual, columns = resumed.learn(batch)
        assert without_timings(actual) == without_timings(expected)
        np.testing.assert_array_equal(list(columns.values()), list(expected_columns.values()))
    assert_bitwise_equal(weights(learner), weights(resumed))


def with_distances(experience: Experience) -> Experience:
    """As after some updates: ratios, values and a reference that moved, a gap to the engine."""
    mask, generator = experience.batch.response_mask, torch.Generator().manual_seed(0)
    old, ref, gap, values = torch.randn((4, *mask.shape), generator=generator) * 0.2
    experience.old_logprobs.add_(torch.where(mask, old, 0.0))
    assert experience.ref_logprobs is not None
    experience.ref_logprobs.add_(torch.where(mask, ref, 0.0))
    if experience.values is not None:
        experience.values.add_(torch.where(mask, 3 * values, 0.0))
    moved = experience.old_logprobs + 3 * gap
    experience.batch.rollout_logprobs.copy_(torch.where(mask, moved, 0.0))
    return experience


def slow_actor_gradient(folder: Path, experience: Experience, rows: list[int]) -> Tensor:
    """The whole actor loss of some rows (token mean), one row and one sampled token at a time."""
    actor = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = experience.batch
    assert experience.ref_logprobs is not None
    num_tokens = int(batch.sampled_mask[rows].sum())
    loss = torch.zeros(())
    for row in rows:
        start, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        ids = batch.input_ids[row, :end]
        full = actor(ids.unsqueeze(0)).logits[0].log_softmax(-1)
        for t, position in enumerate(range(start, end)):
            if not batch.sampled_mask[row, t]:
                continue
            predicted = full[position - 1]
            logprob = predicted[ids[position]]
            ratio = (logprob - experience.old_logprobs[row, t]).exp()
            advantage = experience.advantages[row, t]
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            gap = logprob - experience.ref_logprobs[row, t]
            entropy = -(predicted.exp() * predicted).sum()
            engine_gap = experience.old_logprobs[row, t] - batch.rollout_logprobs[row, t]
            loss = loss - surrogate * engine_gap.exp().clamp(max=2.0)
            loss = loss + 0.1 * gap.square() / 2 - 0.05 * entropy
    (loss / num_tokens).backward()
    return torch.cat([p.grad.flatten() for p in actor.parameters()])


def slow_critic_gradient(learner: Learner, experience: Experience, rows: list[int]) -> Tensor:
    """The value loss of some rows, one row at a time."""
    critic, batch = learner.models.critic, experience.batch
    assert critic is not None
    assert experience.values is not None
    assert experience.returns is not None
    critic.zero_grad()
    for row in rows:
        start, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        states = critic.backbone(batch.input_ids[row : row + 1, :end]).last_hidden_state[0]
        values = critic.head(states[start - 1 : end - 1]).squeeze(-1)
        old, target = (x[row, : len(values)] for x in (experience.values, experience.returns))
        kept = torch.maximum(torch.minimum(values, old + 0.5), old - 0.5)
        worse = torch.maximum((values - target).square(), (kept - target).square())
        worse = worse[batch.sampled_mask[row, : len(values)]]
        (worse.sum() / 2 / int(batch.sampled_mask[rows].sum())).backward()
    result = torch.cat([p.grad.flatten() for p in critic.parameters() if p.grad is not None])
    critic.zero_grad()
    return result
