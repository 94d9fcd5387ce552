import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_core.algos import advantages as adv
from rl_core.algos.masking import whiten

NAN = float("nan")
TOLERANCE = {"atol": 1e-6, "rtol": 1e-6}
CENTRED = [adv.grpo_advantages, adv.dr_grpo_advantages, adv.rloo_advantages]


def lengths_to_mask(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)


def given_rewards(
    rewards: Tensor,
    groups: Tensor,
    mask: Tensor,
    *,
    token_rewards: Tensor | None = None,
    values: Tensor | None = None,
) -> adv.GivenRewards:
    """What an estimator is given of responses without a KL penalty, all of them correct."""
    return adv.GivenRewards(
        rewards=rewards,
        outcomes=rewards,
        correct=torch.ones(len(rewards), dtype=torch.bool),
        group_ids=groups,
        token_rewards=rewards.unsqueeze(-1) * mask if token_rewards is None else token_rewards,
        mask=mask,
        values=values,
        old_logprobs=torch.zeros(mask.shape),
    )


def assert_equal_under_mask(actual: Tensor, expected: Tensor, mask: Tensor) -> None:
    torch.testing.assert_close(actual[mask], expected[mask], **TOLERANCE)
    assert (actual[~mask] == 0).all()


# --- GAE


def test_gae_by_hand():
    # gamma 1/2, lambda 1/2. Row 0: deltas 1 + 3 - 4 = 0, 2 + 1 - 6 = -3, 8 - 2 = 6;
    # A2 = 6, A1 = -3 + 6/4 = -1.5, A0 = 0 - 1.5/4 = -0.375. Row 1: A0 = 5 - 1 = 4.
    rewards = torch.tensor([[1.0, 2.0, 8.0], [5.0, NAN, NAN]])
    values = torch.tensor([[4.0, 6.0, 2.0], [1.0, NAN, NAN]])
    mask = lengths_to_mask([3, 1])
    advantages, returns = adv.generalized_advantages(
        rewards, values, mask, gamma=0.5, gae_lambda=0.5
    )
    assert advantages.tolist() == [[-0.375, -1.5, 6.0], [4.0, 0.0, 0.0]]
    assert returns.tolist() == [[3.625, 4.5, 8.0], [5.0, 0.0, 0.0]]


def slow_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: A_t is the sum over k of (gamma lambda)^k delta_{t+k}."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [
        sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    gamma=st.floats(0.5, 1),
    lam=st.floats(0, 1),
)
def test_gae_equals_the_slow_sum_and_skips_holes(data, lengths, gamma, lam):
    width = max(lengths) + 2
    # Each response's tokens lie anywhere in its row, in order: a hole is as if it were not there.
    columns = [
        sorted(data.draw(st.permutations(range(width)), label="columns")[:length])
        for length in lengths
    ]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    rewards, values = (
        torch.randn(len(lengths), width, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    mask = torch.zeros(rewards.shape, dtype=torch.bool)
    for row, chosen in enumerate(columns):
        mask[row, chosen] = True
    advantages, returns = adv.generalized_advantages(
        rewards, values, mask, gamma=gamma, gae_lambda=lam
    )
    for row, chosen in enumerate(columns):
        expected = slow_gae(rewards[row, chosen].tolist(), values[row, chosen].tolist(), gamma, lam)
        assert advantages[row, chosen].tolist() == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(returns[mask], (advantages + values)[mask])
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()


@pytest.mark.parametrize(
    ("name", "gamma", "gae_lambda"),
    [("gae_gamma1_lam1", 1.0, 1.0), ("gae_gamma0.99_lam0.95", 0.99, 0.95)],
)
def test_gae_agrees_with_verl(golden, name, gamma, gae_lambda):
    mask = golden["in.response_mask"]
    advantages, returns = adv.generalized_advantages(
        golden["in.dense_rewards"], golden["in.values"], mask, gamma=gamma, gae_lambda=gae_lambda
    )
    assert_equal_under_mask(
        whiten(advantages, mask), golden[f"out.{name}.advantages_whitened"], mask
    )
    assert_equal_under_mask(returns, golden[f"out.{name}.returns"], mask)


# --- critic-free

REWARDS = torch.tensor([1.0, 0.0, 0.1, 0.1, 5.0, 2.0, 0.1])
GROUPS = torch.tensor([7, 7, 3, 3, 9, 7, 3])
MASK = lengths_to_mask([2, 1, 1, 1, 1, 1, 1])


def first_tokens(advantages: Tensor) -> list[float]:
    return advantages[:, 0].tolist()


def test_group_estimators_by_hand():
    # Group 7 holds 1, 0, 2: mean 1, std 1. Group 3 has no spread, group 9 one response.
    centred = [0.0, -1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert first_tokens(adv.dr_grpo_advantages(given_rewards(REWARDS, GROUPS, MASK))) == centred
    assert first_tokens(adv.grpo_advantages(given_rewards(REWARDS, GROUPS, MASK))) == pytest.approx(
        [x / (1 + 1e-6) for x in centred]
    )
    # The others' mean: for reward 2 it is 1/2, for reward 0 it is 3/2.
    assert first_tokens(adv.rloo_advantages(given_rewards(REWARDS, GROUPS, MASK))) == pytest.approx(
        [0.0, -1.5, 0.0, 0.0, 0.0, 1.5, 0.0]
    )


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_equal_float32_rewards_give_exactly_no_advantage(size):
    rewards = torch.full((size,), 0.1)
    mask = torch.ones(size, 2, dtype=torch.bool)
    groups = torch.zeros(size, dtype=torch.int64)
    result = adv.grpo_advantages(given_rewards(rewards, groups, mask))
    assert (result == 0).all()


def slow_group(rewards: list[float], groups: list[int], kind: str) -> list[float]:
    result = []
    for i, reward in enumerate(rewards):
        group = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        others = [r for j, r in enumerate(rewards) if groups[j] == groups[i] and j != i]
        mean = sum(group) / len(group)
        if len(group) == 1:
            result.append(0.0)
        elif kind == "rloo":
            result.append(reward - sum(others) / len(others))
        elif kind == "dr_grpo":
            result.append(reward - mean)
        else:
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
            result.append((reward - mean) / (std + 1e-6))
    return result


@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 4)), min_size=1, max_size=20))
def test_group_estimators_equal_the_slow_loop_in_any_order(rows):
    rewards, groups = [r / 10 for r, _ in rows], [g for _, g in rows]
    mask = torch.ones(len(rows), 1, dtype=torch.bool)
    for estimator, kind in zip(CENTRED, ["grpo", "dr_grpo", "rloo"], strict=True):
        given_ones = torch.tensor(rewards).double(), torch.tensor(groups), mask
        result = estimator(given_rewards(*given_ones))
        # float32 rewards: a group of equal tenths must not be blown up by 1 / 1e-6.
        expected = slow_group(torch.tensor(rewards).tolist(), groups, kind)
        assert first_tokens(result) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_group_estimators_agree_with_verl(golden, name):
    mask = golden["in.response_mask"]
    rewards = adv.response_sums(golden["in.token_rewards"], mask)
    result = adv.ESTIMATORS[name].function(given_rewards(rewards, golden["in.group_index"], mask))
    if name == "reinforce_plus_plus_baseline":  # verl subtracts the mean over tokens as well
        result = (result - result[mask].mean()).where(mask, 0.0)
    assert_equal_under_mask(result, golden[f"out.{name}.advantages"], mask)


def test_a_group_of_only_right_responses_is_not_pushed_away():
    """Also if others' lengths make the mean over tokens differ from 0: here it is 0.75 std."""
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.0])
    groups = torch.tensor([0, 0, 1, 1])
    mask = lengths_to_mask([2, 2, 10, 1])
    result = adv.reinforce_plus_plus_baseline_advantages(given_rewards(rewards, groups, mask))
    assert (result[:2] == 0).all()
    std = torch.tensor([0.0] * 4 + [0.5] * 10 + [-0.5]).std().item()
    assert first_tokens(result)[2:] == pytest.approx([0.5 / std, -0.5 / std], rel=1e-5)


def test_reinforce_plus_plus_agrees_with_verl(golden):
    mask, rewards = golden["in.response_mask"], golden["in.dense_rewards"]
    returns = adv.discounted_returns(rewards, mask, gamma=1.0)
    assert_equal_under_mask(returns, golden["out.reinforce_plus_plus.returns"], mask)
    sums = adv.response_sums(rewards, mask)
    inputs = given_rewards(sums, torch.arange(len(sums)), mask, token_rewards=rewards)
    advantages = adv.reinforce_plus_plus_advantages(inputs, gamma=1.0)
    assert_equal_under_mask(advantages, golden["out.reinforce_plus_plus.advantages"], mask)


def test_discounted_returns_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 4.0], [0.0, 2.0, NAN]])
    returns = adv.discounted_returns(rewards, lengths_to_mask([3, 2]), gamma=0.5)
    assert returns.tolist() == [[2.0, 2.0, 4.0], [1.0, 2.0, 0.0]]


@pytest.mark.parametrize("estimator", [*CENTRED, adv.reinforce_plus_plus_baseline_advantages])
def test_more_padding_changes_nothing(estimator):
    rewards, groups = torch.tensor([1.0, 0.0, 0.5, 0.5]), torch.tensor([0, 0, 1, 1])
    mask = lengths_to_mask([3, 1, 2, 2])
    padded = torch.nn.functional.pad(mask, (0, 4))
    result = estimator(given_rewards(rewards, groups, padded))
    assert result[:, :3].tolist() == estimator(given_rewards(rewards, groups, mask)).tolist()
    assert (result[:, 3:] == 0).all()


# --- maxrl


MAXRL = {
    (1, 0, 0, 0): (3.0, -1.0, -1.0, -1.0),
    (1, 1, 0, 0): (1.0, 1.0, -1.0, -1.0),
    (1, 1, 1, 0): (1 / 3, 1 / 3, 1 / 3, -1.0),
    (1, 1, 1, 1): (0.0, 0.0, 0.0, 0.0),
    (0, 0, 0, 0): (0.0, 0.0, 0.0, 0.0),
    (0, 1, 0, 0, 0, 0, 0, 0): (-1.0, 7.0, *[-1.0] * 6),
    (1,): (1.0,),
    (0,): (0.0,),
}


def maxrl_of(correct: tuple[int, ...], rewards: Tensor, lengths: list[int]) -> Tensor:
    groups = torch.full((len(correct),), 3)
    inputs = given_rewards(rewards, groups, lengths_to_mask(lengths))
    at_end = adv.end_rewards(rewards, inputs.mask)
    return adv.maxrl_advantages(
        replace(inputs, correct=torch.tensor(correct).bool(), token_rewards=at_end)
    )


@pytest.mark.parametrize(("correct", "expected"), MAXRL.items())
def test_maxrl_by_hand(correct, expected):
    # Scores with format credit do not matter: the verdict counts.
    scores = torch.tensor([0.1, 0.0] * len(correct))[: len(correct)]
    result = maxrl_of(correct, scores, [2] * len(correct))
    torch.testing.assert_close(result, torch.tensor(expected).unsqueeze(-1).expand(-1, 2))


@given(correct=st.lists(st.booleans(), min_size=2, max_size=12).filter(any), seed=st.integers(0, 9))
def test_maxrl_is_the_mean_over_right_responses_less_that_over_all(correct, seed):
    gradients = torch.randn(len(correct), generator=torch.Generator().manual_seed(seed)).double()
    right = torch.tensor(correct)
    ones = torch.ones(len(correct)).double()
    actual = (maxrl_of(tuple(correct), ones, [1] * len(correct))[:, 0] * gradients).mean()
    torch.testing.assert_close(actual, gradients[right].mean() - gradients.mean())
    rloo = adv.rloo_advantages(
        given_rewards(right.double(), torch.zeros(len(right)), lengths_to_mask([1] * len(right)))
    )
    factor = (len(right) - 1) / len(right) / right.double().mean()
    torch.testing.assert_close(actual, (rloo[:, 0] * gradients).mean() * factor)


def test_maxrl_refuses_rewards_of_turns():
    inputs = given_rewards(torch.ones(2), torch.zeros(2), lengths_to_mask([3, 2]))
    with pytest.raises(ValueError, match="estimator=maxrl counts verdicts, and the env rewards"):
        adv.maxrl_advantages(inputs)  # its helper gives each token the reward


# --- gate, spread, token rewards


def test_gate_closes_groups_without_a_correct_response():
    correct = torch.tensor([False, True, False, False, False])
    groups = torch.tensor([4, 4, 2, 2, 8])
    assert adv.outcome_gate(correct, groups).tolist() == [True, True, False, False, False]


def test_zero_spread_fraction_by_hand():
    rewards = torch.tensor([0.1, 0.1, -1.0, 2.0, 5.0])
    groups = torch.tensor([1, 1, 0, 0, 6])
    assert adv.zero_spread_fraction(rewards, groups) == pytest.approx(2 / 3)


def test_rounding_is_no_spread():
    rewards, groups = torch.tensor([0.3, 0.3 + 1e-7, 0.0, 1e-5]), torch.tensor([0, 0, 1, 1])
    assert adv.has_spread(rewards, groups).tolist() == [False, False, True, True]
    mask = lengths_to_mask([1, 1, 1, 1])
    advantages = first_tokens(adv.grpo_advantages(given_rewards(rewards, groups, mask)))
    assert advantages[:2] == [0.0, 0.0]
    assert advantages[3] > 0.5


def test_rewards_stand_at_the_last_token_and_sum_up_again():
    rewards, mask = torch.tensor([2.0, -1.0]), lengths_to_mask([3, 1])
    placed = adv.end_rewards(rewards, mask)
    assert placed.tolist() == [[0.0, 0.0, 2.0], [-1.0, 0.0, 0.0]]
    assert adv.response_sums(placed, mask).tolist() == [2.0, -1.0]


def test_overlong_penalties_by_hand():
    lengths = torch.tensor([10, 80, 85, 100])
    penalties = adv.overlong_penalties(lengths, num_tokens=20, max_length=100)
    assert penalties.tolist() == [0.0, 0.0, -0.25, -1.0]


def test_length_penalties_by_hand():
    lengths, correct = torch.tensor([10, 50, 100, 100]), torch.tensor([True, True, True, False])
    penalties = adv.length_penalties(lengths, correct, weight=0.5, max_length=100)
    assert penalties.tolist() == pytest.approx([-0.05, -0.25, -0.5, 0.0])
