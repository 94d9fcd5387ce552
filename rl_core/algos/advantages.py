"""How rewards become advantages: GAE for PPO with a critic, and the critic-free family.

Legend: B responses, T response tokens (right-padded), G responses of a group. `rewards` are float
[B], one per response; `token_rewards` and `values` float [B, T]; `group_ids` int [B], equal for
responses to one prompt; `correct` is bool [B], `response_mask` bool [B, T]; `gamma` is the discount
per token. Results are 0 outside the mask, and nothing outside it matters. No function carries
gradient.
"""

import torch
from torch import Tensor

from rl_core.algos.masking import masked_sum, whiten


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


def discounted_returns(token_rewards: Tensor, response_mask: Tensor, *, gamma: float) -> Tensor:
    """Returns the discounted sum of the rewards from each token on, float [B, T]."""
    no_values = torch.zeros_like(token_rewards)
    return generalized_advantages(
        token_rewards, no_values, response_mask, gamma=gamma, gae_lambda=1.0
    )[1]


def _group_index(group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each response's group as 0..num_groups-1 [B], and the groups' sizes [num_groups]."""
    _, index, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return index, sizes


def _centre(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rewards minus their group's mean in float64 [B], group of each [B], group sizes.

    float64, so that a group of equal float32 rewards is exactly 0: in float32 a rounding error of
    the mean, divided by GRPO's std + 1e-6, would look like an advantage.
    """
    index, sizes = _group_index(group_ids)
    exact = rewards.double()
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=rewards.device)
    means = sums.index_add(0, index, exact) / sizes
    return exact - means[index], index, sizes


def _spread_over_tokens(per_response: Tensor, rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Returns one number per response as a number per token, [B, T], in the rewards' dtype."""
    return torch.where(response_mask, per_response.to(rewards.dtype).unsqueeze(-1), 0.0)


def grpo_advantages(
    rewards: Tensor, group_ids: Tensor, response_mask: Tensor, *, eps: float = 1e-6
) -> Tensor:
    """Returns (reward - group mean) / (group std + eps) at each token, float [B, T].

    Convention: Bessel-corrected std, eps outside the root. A group without spread, or of one
    response, has nothing to compare: 0.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2.
    """
    centred, index, sizes = _centre(rewards, group_ids)
    squares = torch.zeros(len(sizes), dtype=torch.float64, device=rewards.device)
    variance = squares.index_add(0, index, centred.square()) / (sizes - 1).clamp(min=1)
    return _spread_over_tokens(centred / (variance.sqrt()[index] + eps), rewards, response_mask)


def dr_grpo_advantages(rewards: Tensor, group_ids: Tensor, response_mask: Tensor) -> Tensor:
    """Returns reward - group mean at each token, float [B, T]: GRPO not divided by the std.

    Source: Understanding R1-Zero-Like Training (arXiv:2503.20783), section 3.2.
    """
    centred, _, _ = _centre(rewards, group_ids)
    return _spread_over_tokens(centred, rewards, response_mask)


def rloo_advantages(rewards: Tensor, group_ids: Tensor, response_mask: Tensor) -> Tensor:
    """Returns reward - mean of the OTHER rewards of the group at each token, float [B, T].

    Equal to G / (G - 1) times (reward - group mean). A group of one response: 0.

    Source: Back to Basics (arXiv:2402.14740), section 2.3.
    """
    centred, index, sizes = _centre(rewards, group_ids)
    size = sizes[index]
    return _spread_over_tokens(centred * size / (size - 1).clamp(min=1), rewards, response_mask)


def reinforce_plus_plus_advantages(
    token_rewards: Tensor, response_mask: Tensor, *, gamma: float
) -> Tensor:
    """Returns discounted returns, whitened over all tokens of the batch, float [B, T].

    `token_rewards` hold the KL penalty.

    Source: REINFORCE++ (arXiv:2501.03262), equations 3 and 4.
    """
    return whiten(discounted_returns(token_rewards, response_mask, gamma=gamma), response_mask)


def reinforce_plus_plus_baseline_advantages(
    rewards: Tensor, group_ids: Tensor, response_mask: Tensor
) -> Tensor:
    """Returns reward - group mean, whitened over all tokens of the batch, float [B, T].

    Source: REINFORCE++ (arXiv:2501.03262), the variant with a group baseline.
    """
    return whiten(dr_grpo_advantages(rewards, group_ids, response_mask), response_mask)


def outcome_gate(correct: Tensor, group_ids: Tensor) -> Tensor:
    """Returns which responses are in a group with at least one correct response, bool [B].

    If all fail, rewards differ only by format credit, and dividing by the group's tiny std would
    turn that into full-size advantages. Keep such groups out of an estimator's mask.
    """
    index, sizes = _group_index(group_ids)
    successes = torch.zeros_like(sizes).index_add(0, index, correct.to(sizes.dtype))
    return successes[index] > 0


def has_spread(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Returns which responses are in a group whose rewards are not all equal, bool [B]."""
    index, sizes = _group_index(group_ids)
    highest = torch.full_like(sizes, 0, dtype=rewards.dtype)
    lowest = highest.scatter_reduce(0, index, rewards, "amin", include_self=False)
    highest = highest.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return (highest > lowest)[index]


def zero_spread_fraction(rewards: Tensor, group_ids: Tensor) -> float:
    """Returns the share of groups whose rewards are all equal: they teach nothing."""
    spread = group_ids[has_spread(rewards, group_ids)]
    return 1 - len(torch.unique(spread)) / len(torch.unique(group_ids))


def end_rewards(rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Returns each response's reward at its last token, 0 elsewhere; no response may be empty."""
    num_tokens = response_mask.shape[-1]
    positions = torch.arange(num_tokens, device=response_mask.device)
    last = torch.where(response_mask, positions, -1).amax(dim=-1, keepdim=True)
    return torch.where(positions == last, rewards.unsqueeze(-1), 0.0)


def response_sums(token_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Returns each response's summed token rewards, float [B]: its outcome."""
    return masked_sum(token_rewards, response_mask, dim=-1)
