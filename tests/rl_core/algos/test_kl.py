import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_core.algos.kl import adaptive_kl_coef, fixed_kl_coef, kl_estimate


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", [0.5, -1.0]), ("k2", [0.125, 0.5]), ("k3", [math.exp(-0.5) - 0.5, math.e - 2.0])],
)
def test_estimates_by_hand(estimator, expected):
    result = kl_estimate(torch.tensor([-1.0, -3.0]), torch.tensor([-1.5, -2.0]), estimator)
    assert result.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimates_agree_with_verl(golden, estimator):
    mask = golden["in.response_mask"]
    result = kl_estimate(golden["in.logprobs"], golden["in.ref_logprobs"], estimator)
    torch.testing.assert_close(
        result[mask], golden[f"out.kl.{estimator}"][mask], atol=1e-6, rtol=1e-6
    )


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    generator = torch.Generator().manual_seed(0)
    logits, ref_logits = torch.randn(2, 50, dtype=torch.float64, generator=generator) / 2
    logprobs, ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    exact = (logprobs.exp() * (logprobs - ref)).sum()
    for estimator in ("k1", "k3"):
        estimates = kl_estimate(logprobs, ref, estimator)
        torch.testing.assert_close((logprobs.exp() * estimates).sum(), exact)
    assert (kl_estimate(logprobs, ref, "k3") >= 0).all()


def test_the_gradient_of_k2_is_the_gradient_of_the_kl():
    # E[d k2] = E[(log p - log q) d log p] = d KL: why k2 is the one to differentiate on-policy.
    logits = torch.randn(8, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(8, dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    probs = logprobs.detach().exp()
    (estimated,) = torch.autograd.grad(
        (probs * kl_estimate(logprobs, ref, "k2")).sum(), logits, retain_graph=True
    )
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - ref)).sum(), logits)
    torch.testing.assert_close(estimated, exact)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 1.0), ("k2", 8.0), ("k3", 1.0)])
def test_only_k2_pulls_back_in_full_after_a_collapse(estimator, expected):
    logprobs = torch.tensor([-0.5], requires_grad=True)
    kl_estimate(logprobs, torch.tensor([-8.5]), estimator).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(expected, abs=1e-3)


def test_the_gradient_of_k3_is_that_of_the_other_kl():
    logits = (torch.randn(8, dtype=torch.float64) / 3).requires_grad_()
    ref = (torch.randn(8, dtype=torch.float64) / 3).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    estimate = (logprobs.detach().exp() * kl_estimate(logprobs, ref, "k3")).sum()
    (estimated,) = torch.autograd.grad(estimate, logits, retain_graph=True)
    (other,) = torch.autograd.grad((ref.exp() * (ref - logprobs)).sum(), logits)
    torch.testing.assert_close(estimated, other)


def test_one_odd_token_cannot_drown_k3():
    assert kl_estimate(torch.tensor(-100.0), torch.tensor(0.0), "k3").item() == 10.0


def test_controllers_by_hand():
    settings = {"target": 6.0, "horizon": 1_000, "num_rollouts": 100}
    # 6.6 is a tenth above the target: 0.1 * 100 / 1,000 more. Far off: at most a fifth of the step.
    assert adaptive_kl_coef(0.2, 6.6, **settings) == pytest.approx(0.2 * 1.01)
    assert adaptive_kl_coef(0.2, 60.0, **settings) == pytest.approx(0.2 * 1.02)
    assert adaptive_kl_coef(0.2, 0.0, **settings) == pytest.approx(0.2 * 0.98)
    assert adaptive_kl_coef(0.2, 6.0, **settings) == 0.2
    assert fixed_kl_coef(0.2, 60.0, **settings) == 0.2


@given(st.floats(0, 50), st.floats(0, 50))
def test_more_kl_never_lowers_the_next_coefficient(one, other):
    low, high = (
        adaptive_kl_coef(0.1, kl, target=5.0, horizon=500, num_rollouts=50)
        for kl in sorted((one, other))
    )
    assert 0 < low <= high
