"""How rewards become advantages: GAE for PPO with a critic, and the critic-free family.

An estimator is a function of `GivenRewards` and its row in `ESTIMATORS`, at the end of this file.
The settings read that table without torch, so torch is imported only inside functions.

Legend: B responses, T response tokens (right-padded), G responses of a group. `rewards` are float
[B], one per response; `token_rewards` and `values` float [B, T]; `group_ids` int [B], equal for
responses to one prompt; `correct` is bool [B], `response_mask` bool [B, T]; `gamma` is the discount
per token. Results are 0 outside the mask, and nothing outside it matters. No function carries
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rl_core.algos.masking import Aggregation, divide_by_std, masked_sum, whiten

if TYPE_CHECKING:
    from torch import Tensor

MIN_SPREAD: Final = 1e-6
"""Rewards of a group that differ by at most this are equal."""


@dataclass(frozen=True)
class GivenRewards:
    """What an estimator is given: all responses of a step, their groups whole, without gradient."""

    rewards: Tensor
    """float [B]: the scorer's and the turns' rewards, less the KL penalty (`kl_mode=reward`)."""
    outcomes: Tensor
    """float [B]: the same without the KL penalty."""
    correct: Tensor
    """bool [B]: the verdict was `correct`."""
    group_ids: Tensor
    """int64 [B], equal for responses to one prompt."""
    token_rewards: Tensor
    """float [B, T]: `rewards` at the tokens that earned them, mostly the last one of a response."""
    mask: Tensor
    """bool [B, T]: the sampled tokens that may get an advantage."""
    values: Tensor | None
    """float [B, T]: of the critic, for an estimator that needs one."""
    old_logprobs: Tensor
    """float [B, T]: of the policy before the update; the engines' own where both are equal."""
    extra_info: Sequence[Mapping[str, Any]] = ()
    """Of each response's problem: `index`, `num_solutions`, and the row's own `extra_info`."""


@dataclass(frozen=True)
class Estimator:
    """A way to compute advantages, and what a run needs for it."""

    function: Callable[..., Any]
    """Returns advantages, float [B, T], 0 outside the mask; with a critic also its targets."""
    settings: tuple[str, ...] = ()
    """Settings of `algorithm` that the function takes as keywords."""
    needs_critic: bool = False
    needs_groups: bool = False
    """It compares the responses to one prompt, so there must be several; `outcome_gate` applies."""
    ignores_rewards: bool = False
    """Rewards do not count, so a penalty in them would not."""
    aggregation: Aggregation = "token-mean"
    """If neither `actor.loss_aggregation` nor the policy loss says otherwise."""


def generalized_advantages(
    token_rewards: Tensor, values: Tensor, response_mask: Tensor, *, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Returns GAE advantages, not whitened, and returns (advantages + values), each float [B, T].

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}; after a response
    the value is 0. Tokens outside the mask are skipped, as if the response did not hold them.

    `values[:, t]` is the value before token t is chosen. `gae_lambda` 1 gives reward-to-go minus
    value, 0 the one-step error.

    Source: Schulman et al. 2015 (arXiv:1506.02438), equations 11 to 16.
    """
    import torch

    rewards_t, values_t, mask_t = (
        x.transpose(0, 1).contiguous() for x in (token_rewards, values, response_mask)
    )
    advantages_t = torch.zeros_like(values_t)
    advantage = next_value = torch.zeros_like(values_t[0])
    for t in reversed(range(values_t.shape[0])):
        delta = rewards_t[t] + gamma * next_value - values_t[t]
        advantage = torch.where(mask_t[t], delta + gamma * gae_lambda * advantage, advantage)
        next_value = torch.where(mask_t[t], values_t[t], next_value)
        advantages_t[t] = advantage
    advantages = torch.where(response_mask, advantages_t.transpose(0, 1), 0.0)
    return advantages, torch.where(response_mask, advantages + values, 0.0)


def gae_advantages(
    given: GivenRewards, *, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Returns GAE advantages, whitened over all tokens of the batch, and the critic's targets.

    The estimator of PPO (arXiv:1707.06347). When: long responses, rewards of turns, or one response
    per prompt, if there is memory for a critic.
    """
    assert given.values is not None, "estimator gae needs the critic's values"
    raw, returns = generalized_advantages(
        given.token_rewards, given.values, given.mask, gamma=gamma, gae_lambda=gae_lambda
    )
    return whiten(raw, given.mask), returns


def discounted_returns(token_rewards: Tensor, response_mask: Tensor, *, gamma: float) -> Tensor:
    """Returns the discounted sum of the rewards from each token on, float [B, T]."""
    no_values = token_rewards.new_zeros(token_rewards.shape)
    return generalized_advantages(
        token_rewards, no_values, response_mask, gamma=gamma, gae_lambda=1.0
    )[1]


def _group_index(group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each response's group as 0..num_groups-1 [B], and the groups' sizes [num_groups]."""
    unique: Any = group_ids.unique  # torch leaves it untyped
    _, index, sizes = unique(return_inverse=True, return_counts=True)
    return index, sizes


def _centre(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rewards minus their group's mean in float64 [B], group of each [B], group sizes.

    float64, so that a group of equal float32 rewards is exactly 0: in float32 a rounding error of
    the mean, divided by GRPO's std + 1e-6, would look like an advantage.
    """
    index, sizes = _group_index(group_ids)
    exact = rewards.double()
    means = exact.new_zeros(len(sizes)).index_add(0, index, exact) / sizes
    return exact - means[index], index, sizes


def _spread_over_tokens(per_response: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """Returns one number per response as a number per token, [B, T], in the rewards' dtype."""
    return per_response.to(rewards.dtype).unsqueeze(-1).where(mask, 0.0)


def grpo_advantages(given: GivenRewards, *, eps: float = 1e-6) -> Tensor:
    """Returns (reward - group mean) / (group std + eps) at each token, float [B, T].

    Convention: Bessel-corrected std, eps outside the root. A group without spread, or of one
    response, has nothing to compare: 0. So has a group whose outcomes are equal, as the KL penalty
    alone, divided by its own std, would be a full-size advantage.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2.
    """
    mask = given.mask & has_spread(given.outcomes, given.group_ids).unsqueeze(-1)
    centred, index, sizes = _centre(given.rewards, given.group_ids)
    squares = centred.new_zeros(len(sizes))
    variance = squares.index_add(0, index, centred.square()) / (sizes - 1).clamp(min=1)
    return _spread_over_tokens(centred / (variance.sqrt()[index] + eps), given.rewards, mask)


def dr_grpo_advantages(given: GivenRewards) -> Tensor:
    """Returns reward - group mean at each token, float [B, T]: GRPO not divided by the std.

    Nor by a response's length: its own aggregation divides by the longest that the run allows.
    When: problems of very different difficulty, of which the std would make equals.

    Source: Understanding R1-Zero-Like Training (arXiv:2503.20783), section 3.2.
    """
    centred, _, _ = _centre(given.rewards, given.group_ids)
    return _spread_over_tokens(centred, given.rewards, given.mask)


def rloo_advantages(given: GivenRewards) -> Tensor:
    """Returns reward - mean of the OTHER rewards of the group at each token, float [B, T].

    Equal to G / (G - 1) times (reward - group mean). A group of one response: 0.

    Source: Back to Basics (arXiv:2402.14740), section 2.3.
    """
    centred, index, sizes = _centre(given.rewards, given.group_ids)
    size = sizes[index]
    unbiased = centred * size / (size - 1).clamp(min=1)
    return _spread_over_tokens(unbiased, given.rewards, given.mask)


def reinforce_plus_plus_advantages(given: GivenRewards, *, gamma: float) -> Tensor:
    """Returns discounted returns, whitened over all tokens of the batch, float [B, T].

    When: one response per prompt, without a critic.

    Source: REINFORCE++ (arXiv:2501.03262), equations 3 and 4.
    """
    returns = discounted_returns(given.token_rewards, given.mask, gamma=gamma)
    return whiten(returns, given.mask)


def reinforce_plus_plus_baseline_advantages(given: GivenRewards) -> Tensor:
    """Returns (reward - group mean) / std over all tokens of the batch, float [B, T].

    Not shifted by the mean over tokens, as verl does: responses of different lengths make that mean
    differ from 0, and a group of only right responses would be pushed away from them.

    Source: REINFORCE++ (arXiv:2501.03262), the variant with a group baseline.
    """
    return divide_by_std(dr_grpo_advantages(given), given.mask)


def maxrl_advantages(given: GivenRewards) -> Tensor:
    """Returns (c - m) / m at each token, float [B, T]: c is 1 if correct, m its group's mean.

    0 if all of a group fail. It follows the gradient of log P(correct), to the order of the group's
    size: a hard problem's rare success weighs 1 / m times as much as in RLOO. The verdict and not
    the score: with format credit a group that fails would get full-size advantages. A group of one
    response has no mean: c. When: pass rates below 0.2, groups of 8 or more; `actor.grad_clip`
    matters.

    Raises:
        ValueError: there are rewards of turns, which no verdict holds.

    Source: Maximum Likelihood RL (arXiv:2602.02710), algorithm 1.
    """
    if bool(((given.token_rewards != 0) & given.mask).sum(dim=-1).gt(1).any()):
        raise ValueError(
            "algorithm.estimator=maxrl counts verdicts, and the env rewards turns: use grpo or gae"
        )
    centred, index, sizes = _centre(given.correct.double(), given.group_ids)
    means = given.correct.double() - centred
    per_response = centred / means.where(means > 0, 1.0)
    per_response = per_response.where(sizes[index] > 1, given.correct.double())
    return _spread_over_tokens(per_response, given.rewards, given.mask)


def distill_advantages(given: GivenRewards) -> Tensor:
    """Returns 0 at each token, float [B, T]: only the teacher teaches, no reward does.

    When: a stronger model has the same tokenizer. It learns in a fraction of RL's steps, with
    groups of 1 to 4 and a learning rate 5 to 10 times RL's, and gets no better than its teacher.

    Source: On-Policy Distillation (Thinking Machines Lab, October 2025).
    """
    return given.token_rewards.new_zeros(given.mask.shape)


def outcome_gate(correct: Tensor, group_ids: Tensor) -> Tensor:
    """Returns which responses are in a group with at least one correct response, bool [B].

    If all fail, rewards differ only by format credit, and dividing by the group's tiny std would
    turn that into full-size advantages. Keep such groups out of an estimator's mask.
    """
    index, sizes = _group_index(group_ids)
    successes = sizes.new_zeros(len(sizes)).index_add(0, index, correct.to(sizes.dtype))
    return successes[index] > 0


def without_unscored(unscored: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the groups without responses that have no score, and which responses are compared.

    A response without a score, `unscored` bool [B], becomes a group of its own (int64 [B]): a
    reward that failed says nothing about the others, and counting it as 0 would make it the
    strongest signal of a group of right answers. It is not compared (bool [B]), and neither is the
    only one that its group has left.
    """
    import torch

    index, sizes = _group_index(group_ids)
    left = torch.zeros_like(sizes).index_add(0, index, (~unscored).to(sizes.dtype))
    alone = len(sizes) + torch.arange(len(index), device=index.device)
    enough = (left > 1) | (left == sizes)
    return torch.where(unscored, alone, index), ~unscored & enough[index]


def has_spread(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Returns which responses are in a group whose rewards differ by more than 1e-6, bool [B].

    Sums of the same rewards in another order differ by about 1e-7; divided by their own std, such
    differences would be full-size advantages.
    """
    index, sizes = _group_index(group_ids)
    highest = rewards.new_zeros(len(sizes))
    lowest = highest.scatter_reduce(0, index, rewards, "amin", include_self=False)
    highest = highest.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return (highest - lowest > MIN_SPREAD)[index]


def zero_spread_fraction(rewards: Tensor, group_ids: Tensor) -> float:
    """Returns the share of groups whose rewards are all equal: they teach nothing."""
    _, with_spread = _group_index(group_ids[has_spread(rewards, group_ids)])
    _, sizes = _group_index(group_ids)
    return 1 - len(with_spread) / len(sizes)


def end_rewards(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Returns each response's reward at its last token, 0 elsewhere; no response may be empty."""
    import torch

    num_tokens = response_mask.shape[-1]
    positions = torch.arange(num_tokens, device=response_mask.device)
    last = torch.where(response_mask, positions, -1).amax(dim=-1, keepdim=True)
    return torch.where(positions == last, rewards.unsqueeze(-1), 0.0)


def overlong_penalties(lengths: Tensor, *, num_tokens: int, max_length: int) -> Tensor:
    """Returns what long responses lose, float [B]: from 0 linearly to -1 over the last tokens.

    (max_length - num_tokens - length) / num_tokens beyond max_length - num_tokens. A response near
    the limit learns to end before it is cut.

    Source: DAPO (arXiv:2503.14476), equation 13.
    """
    return ((max_length - num_tokens - lengths) / num_tokens).clamp(-1.0, 0.0)


def length_penalties(lengths: Tensor, correct: Tensor, *, weight: float, max_length: int) -> Tensor:
    """Returns what right responses lose by their length, float [B]: -weight at the longest.

    Wrong ones lose nothing. If they did, the shortest failure would be the best of a group in which
    all fail, and the model would learn to give up.
    """
    return -weight * correct * lengths / max_length


def response_sums(token_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Returns each response's summed token rewards, float [B]: its outcome."""
    return masked_sum(token_rewards, response_mask, dim=-1)


ESTIMATORS: Final[dict[str, Estimator]] = {
    "gae": Estimator(gae_advantages, settings=("gamma", "gae_lambda"), needs_critic=True),
    "grpo": Estimator(grpo_advantages, needs_groups=True),
    "dr_grpo": Estimator(
        dr_grpo_advantages, needs_groups=True, aggregation="seq-mean-token-sum-norm"
    ),
    "rloo": Estimator(rloo_advantages, needs_groups=True),
    "reinforce_plus_plus": Estimator(reinforce_plus_plus_advantages, settings=("gamma",)),
    "reinforce_plus_plus_baseline": Estimator(
        reinforce_plus_plus_baseline_advantages, needs_groups=True
    ),
    "maxrl": Estimator(
        maxrl_advantages,
        needs_groups=True,
        ignores_rewards=True,
        aggregation="seq-mean-token-sum-norm",
    ),
    "distill": Estimator(distill_advantages, ignores_rewards=True),
}
"""By the name that `algorithm.estimator` chooses."""
