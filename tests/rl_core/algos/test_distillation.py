import pytest
import torch
from torch import Tensor

from rl_core.algos.distillation import teacher_advantages
from rl_core.algos.losses import GivenTokens, ppo_policy_loss, share_of_loss
from rl_core.algos.masking import count_denominators

P, Q = torch.tensor([[0.5, 0.2, 0.9]]), torch.tensor([[0.25, 0.4, 0.45]])
MASK = torch.ones(1, 3, dtype=torch.bool)


def of(p: Tensor, q: Tensor, *, coef: float = 1.0, bound: float = 10.0) -> Tensor:
    return teacher_advantages(p.log(), q.log(), MASK[:, : p.shape[1]], coef=coef, bound=bound)


def test_the_teachers_advantages_by_hand():
    expected = torch.tensor([[-0.693147, 0.693147, -0.693147]])
    torch.testing.assert_close(of(P, Q), expected, atol=1e-6, rtol=0)
    assert of(torch.tensor([[0.5]]), torch.tensor([[1e-9]])).item() == -10.0
    assert of(P, P).tolist() == [[0.0, 0.0, 0.0]]
    with_reward = 1.5 + of(P, Q, coef=0.5)
    assert with_reward[0, 0].item() == pytest.approx(1.153426, abs=1e-6)


def test_the_loss_of_a_first_update_by_hand():
    logprobs = P.log().requires_grad_()
    given = GivenTokens(
        logprobs=logprobs,
        old_logprobs=P.log(),
        rollout_logprobs=P.log(),
        advantages=of(P, Q),
        mask=MASK,
    )
    tokens = ppo_policy_loss(given, clip_eps_low=0.2, clip_eps_high=0.2)
    share = share_of_loss(
        given, tokens, None, aggregation="token-mean", denominators=count_denominators(MASK)
    )
    share.loss.backward()
    assert share.loss.item() == pytest.approx(0.231049, abs=1e-6)
    expected = torch.tensor([[0.231049, -0.231049, 0.231049]])
    torch.testing.assert_close(logprobs.grad, expected, atol=1e-6, rtol=0)


def test_nothing_outside_the_mask_matters():
    nan = torch.full((1, 2), torch.nan)
    mask = torch.tensor([[True, True, True, False, False]])
    padded = teacher_advantages(
        torch.cat([P.log(), nan], 1), torch.cat([Q.log(), nan], 1), mask, coef=1.0, bound=10.0
    )
    assert padded[:, :3].tolist() == of(P, Q).tolist()
    assert (padded[:, 3:] == 0).all()
