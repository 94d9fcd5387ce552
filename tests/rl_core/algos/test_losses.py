import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_core.algos.losses import (
    LOSSES,
    GivenTokens,
    PolicyLoss,
    clipped_value_loss,
    share_of_loss,
)
from rl_core.algos.masking import Aggregation, count_denominators

NAN = float("nan")
CLIP: dict[str, Any] = {"clip_eps_low": 0.2, "clip_eps_high": 0.2}
AGGREGATIONS: list[Aggregation] = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def loss_of(
    kind: str, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **settings: Any
) -> PolicyLoss:
    """The loss of a whole batch by mean over its tokens, whose gradient is there as well."""
    given = GivenTokens(logprobs, old, old, advantages, mask)
    tokens = LOSSES[kind].function(given, **(CLIP | settings))
    denominators = count_denominators(mask)
    result = share_of_loss(given, tokens, None, aggregation="token-mean", denominators=denominators)
    if logprobs.requires_grad:
        result.loss.backward()
    return result


BY_HAND = {
    # Clips at 0.8 and 1.3: losses -2.6 (clipped), -1, 3, 1.6 (clipped). A clipped token has no
    # gradient; else it is -A ratio / 4.
    "ppo": (
        [[1.5, 0.5], [1.5, 0.5]], [2.0, -2.0], (-2.6 - 1.0 + 3.0 + 1.6) / 4, 2 / 4,
        [[0.0, -0.25], [0.75, 0.0]],
    ),
    # A response's ratio is 1; or 4, clipped to 1.3 for a good response and not for a bad one.
    # -A s / 6 at each token of a response that is not clipped.
    "gspo": (
        [[2.0, 0.5], [2.0, 8.0], [2.0, 8.0]], [3.0, 2.0, -2.0], (-3.0 - 2.6 + 8.0) * 2 / 6, 2 / 6,
        [[-0.5, -0.5], [0.0, 0.0], [8 / 6, 8 / 6]],
    ),
    # Weights 1.3, 1 and 0.8 of the log-probs log 2, 0 and log 0.5. Clipped tokens keep their
    # gradient, with the clipped weight: -A c / 3.
    "cispo": (
        [[2.0, 1.0, 0.5]], [2.0], -2 * (1.3 - 0.8) * math.log(2) / 3, 2 / 3,
        [[-2 * 1.3 / 3, -2 / 3, -2 * 0.8 / 3]],
    ),
    # The engine's probability is 1: 1.5 is too far up for a good token, 0.5 too far down for a bad
    # one; the others have -A r.
    "dppo": (
        [[1.5, 0.5], [1.5, 0.5]], [2.0, -2.0], (0.0 - 1.0 + 3.0 + 0.0) / 4, 2 / 4,
        [[0.0, -0.25], [0.75, 0.0]],
    ),
}  # fmt: skip
"""Of each kind: ratios, advantages by row, loss, clipped share and gradient."""


@pytest.mark.parametrize("kind", LOSSES)
def test_policy_losses_by_hand(kind):
    """The last token of each row is padding."""
    rows, by_row, loss, clip_frac, gradient = BY_HAND[kind]
    ratios = torch.nn.functional.pad(torch.tensor(rows), (0, 1), value=NAN)
    mask = ~ratios.isnan()
    logprobs = ratios.log().requires_grad_()
    advantages = torch.tensor(by_row).unsqueeze(-1).where(mask, NAN)
    result = loss_of(kind, logprobs, torch.zeros(ratios.shape), advantages, mask, clip_eps_high=0.3)
    assert result.loss.item() == pytest.approx(loss)
    assert result.clip_frac.item() == pytest.approx(clip_frac)
    if kind == "ppo":
        assert result.approx_kl.item() == pytest.approx(-math.log(0.75) * 2 / 4)
    expected = torch.nn.functional.pad(torch.tensor(gradient), (0, 1))
    torch.testing.assert_close(logprobs.grad, expected)


def test_dual_clip_bounds_the_loss_of_a_token_whose_ratio_has_exploded():
    ratios = torch.tensor([[50.0, 2.0, 50.0]])
    advantages = torch.tensor([[-1.0, -1.0, 1.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    logprobs = ratios.log().requires_grad_()
    given = GivenTokens(logprobs, torch.zeros(1, 3), torch.zeros(1, 3), advantages, mask)
    result = LOSSES["ppo"].function(given, dual_clip=3.0, **CLIP)
    assert result.per_token.tolist() == [pytest.approx([3.0, 2.0, -1.2])]
    assert result.is_clipped.tolist() == [[True, False, True]]
    result.per_token.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [pytest.approx([0.0, 2.0, 0.0])]


def golden_loss(
    golden: dict[str, Tensor],
    aggregation: Aggregation,
    rows: slice = slice(None),
    kind: str = "ppo",
    **settings: Any,
) -> tuple[PolicyLoss, Tensor]:
    """The loss of some rows of verl's inputs, as a share of the whole, and its gradient."""
    mask = golden["in.response_mask"]
    logprobs = golden["in.logprobs"][rows].clone().requires_grad_()
    old, advantages = golden["in.old_logprobs"][rows], golden["in.advantages"][rows]
    given = GivenTokens(logprobs, old, old, advantages, mask[rows])
    weights = settings.pop("importance_weights", None)
    result = share_of_loss(
        given,
        LOSSES[kind].function(given, **(CLIP | settings)),
        weights,
        aggregation=aggregation,
        denominators=count_denominators(mask),
    )
    result.loss.backward()
    assert logprobs.grad is not None
    return result, logprobs.grad


NARROW = {"clip_eps_low": 3e-4, "clip_eps_high": 4e-4}
GOLDEN: list[tuple[str, Aggregation, dict[str, Any]]] = [
    *((f"ppo.{aggregation}", aggregation, {}) for aggregation in AGGREGATIONS),
    ("clip_higher.token-mean", "token-mean", {"clip_eps_high": 0.28}),
    ("tis.token-mean", "token-mean", {"importance_weights": None}),
    ("gspo.seq-mean-token-mean", "seq-mean-token-mean", {"kind": "gspo"} | NARROW),
    ("cispo.token-mean", "token-mean", {"kind": "cispo"}),
]


@pytest.mark.parametrize(("name", "aggregation", "settings"), GOLDEN)
def test_policy_loss_and_gradient_agree_with_verl(golden, name, aggregation, settings):
    if "importance_weights" in settings:
        settings = {"importance_weights": golden["in.importance_weights"]}
    result, grad = golden_loss(golden, aggregation, **settings)
    found = {"loss": result.loss, "pg_clipfrac": result.clip_frac, "ppo_kl": result.approx_kl}
    for key, actual in (found | {"grad_logprobs": grad}).items():
        torch.testing.assert_close(actual, golden[f"out.{name}.{key}"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("cut", [1, 7, 23])
def test_shares_of_a_split_add_up(golden, aggregation, cut, kind):
    whole, grad = golden_loss(golden, aggregation, kind=kind)
    head, head_grad = golden_loss(golden, aggregation, slice(None, cut), kind=kind)
    tail, tail_grad = golden_loss(golden, aggregation, slice(cut, None), kind=kind)
    torch.testing.assert_close(head.loss + tail.loss, whole.loss)
    torch.testing.assert_close(head.clip_frac + tail.clip_frac, whole.clip_frac)
    torch.testing.assert_close(head.approx_kl + tail.approx_kl, whole.approx_kl)
    torch.testing.assert_close(torch.cat([head_grad, tail_grad]), grad)


def _clip(ratio: float, low: float, high: float) -> float:
    return min(max(ratio, 1 - low), 1 + high)


def slow_policy_loss(
    kind: str, tokens: list[tuple[float, float, float]], low: float, high: float
) -> float:
    """The loss of one response whose tokens are (log-prob, old log-prob, advantage)."""
    sequence_ratio = math.exp(sum(new - old for new, old, _ in tokens) / len(tokens))
    total = 0.0
    for new, old, advantage in tokens:
        ratio = sequence_ratio if kind == "gspo" else math.exp(new - old)
        if kind == "dppo":
            moved = math.exp(new) - math.exp(old)
            is_kept = not (advantage > 0 and moved > high) and not (advantage < 0 and moved < -low)
            total -= advantage * min(ratio, 20.0) * is_kept
        elif kind == "cispo":
            total -= _clip(ratio, low, high) * advantage * new
        else:
            total -= min(ratio * advantage, _clip(ratio, low, high) * advantage)
    return total / len(tokens)


_token = st.tuples(st.floats(-6, 0), st.floats(-6, 0), st.floats(-3, 3))


@pytest.mark.parametrize("kind", LOSSES)
@given(st.lists(_token, min_size=1, max_size=12), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_policy_losses_equal_the_slow_loop(kind, tokens, low, high):
    columns = torch.tensor(tokens, dtype=torch.float64).T.unsqueeze(1)
    mask = torch.ones(columns[0].shape, dtype=torch.bool)
    result = loss_of(kind, *columns, mask, clip_eps_low=low, clip_eps_high=high)
    expected = slow_policy_loss(kind, tokens, low, high)
    assert result.loss.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", LOSSES)
def test_on_policy_the_gradient_is_the_policy_gradient(kind):
    logprobs = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    advantages = torch.randn(3, 5, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    result = loss_of(kind, logprobs, logprobs.detach(), advantages, mask)
    assert result.clip_frac.item() == 0.0
    assert result.approx_kl.item() == 0.0
    torch.testing.assert_close(logprobs.grad, torch.where(mask, -advantages, 0.0) / 11)


@pytest.mark.parametrize("kind", LOSSES)
def test_an_extreme_ratio_stays_finite(kind):
    logprobs = torch.tensor([[0.0, -400.0]]).requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    old, advantages = torch.tensor([[-400.0, 0.0]]), torch.tensor([[-1.0, -1.0]])
    result = loss_of(kind, logprobs, old, advantages, mask)
    assert torch.isfinite(result.loss)
    assert torch.isfinite(logprobs.grad).all()


def test_value_loss_by_hand():
    # Value 2 after 1, target 1.2, clip 0.5: kept at 1.5; errors 0.64 and 0.09: the larger counts.
    # Value 0.4 after 1, target 0: kept at 0.5; errors 0.16 and 0.25: the clipped one is larger.
    values = torch.tensor([[2.0, 0.4, NAN]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    result = clipped_value_loss(
        values,
        torch.tensor([[1.0, 1.0, NAN]]),
        torch.tensor([[1.2, 0.0, NAN]]),
        mask,
        value_clip=0.5,
        denominators=count_denominators(mask),
    )
    assert result.loss.item() == pytest.approx((0.64 + 0.25) / 4)
    assert result.clip_frac.item() == 0.5
    assert result.prediction_mean.item() == pytest.approx(1.2)
    result.loss.backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.4, 0.0, 0.0]]))


def test_value_loss_and_gradient_agree_with_verl(golden):
    mask = golden["in.response_mask"]
    values = golden["in.values"].clone().requires_grad_()
    result = clipped_value_loss(
        values,
        golden["in.old_values"],
        golden["in.value_returns"],
        mask,
        value_clip=0.5,
        denominators=count_denominators(mask),
    )
    result.loss.backward()
    found = {"loss": result.loss, "clipfrac": result.clip_frac, "grad_values": values.grad}
    for key, actual in found.items():
        torch.testing.assert_close(actual, golden[f"out.value.{key}"], atol=1e-6, rtol=1e-6)


DPPO = {
    # A: kept, surrogate -A r, gradient at the log-probs. The engine's and our probabilities:
    +1.0: ([0, 1, 1, 1], [0.0, -0.9, -0.666667, -3.0], [0.0, -0.225, -0.166667, -0.75]),
    -1.0: ([1, 1, 0, 1], [3.5, 0.9, 0.0, 3.0], [0.875, 0.225, 0.0, 0.75]),
}
ENGINE, OURS = torch.tensor([[0.10, 0.50, 0.90, 0.001]]), torch.tensor([[0.35, 0.45, 0.60, 0.003]])


@pytest.mark.parametrize(("advantage", "expected"), DPPO.items())
def test_dppo_by_hand(advantage, expected):
    kept, surrogate, gradient = (torch.tensor([row]) for row in expected)
    logprobs = OURS.log().requires_grad_()
    mask = torch.ones_like(kept).bool()
    advantages = torch.full(OURS.shape, advantage)
    given = GivenTokens(logprobs, OURS.log(), ENGINE.log(), advantages, mask)
    tokens = LOSSES["dppo"].function(given, **CLIP)
    torch.testing.assert_close(tokens.per_token, surrogate, atol=1e-5, rtol=0)
    assert (~tokens.is_clipped).tolist() == kept.bool().tolist()
    (tokens.per_token.sum() / 4).backward()
    torch.testing.assert_close(logprobs.grad, gradient, atol=1e-5, rtol=0)
    # What sets it apart: PPO drops the rare token for A = 1, and keeps the common one for A = -1.
    of_ppo = LOSSES["ppo"].function(
        GivenTokens(logprobs, ENGINE.log(), ENGINE.log(), advantages, mask), **CLIP
    )
    if advantage > 0:
        assert bool(of_ppo.is_clipped[0, 3])
    else:
        assert not bool(tokens.is_clipped[0, 3])
