import pytest
import torch
from torch import Tensor

from rl_core.models.full_kl import full_reverse_kl
from rl_core.models.logprobs import Head

P = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
Q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
FLOAT64 = {"compute_dtype": torch.float64}


def kl_of(logits: Tensor, teacher_logits: Tensor, **settings: object) -> Tensor:
    """Of given logits: the states are the logits, the output embedding the identity."""
    eye = Head(torch.eye(logits.shape[-1], dtype=logits.dtype))
    return full_reverse_kl(
        logits, eye, (teacher_logits, eye), **({"temperature": 1.0} | FLOAT64 | settings)
    )


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_kl_and_gradient_by_hand(block_size):
    logits = (P.log() + 3.0).requires_grad_()
    kl = kl_of(logits, Q.log() - 5.0, block_size=block_size)
    kl.sum().backward()
    assert kl.item() == pytest.approx(0.099273, abs=1e-6)
    expected = torch.tensor([[0.166040, -0.064483, -0.101556]]).double()
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=0)


def test_equal_models_are_at_0_exactly():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kl = kl_of(logits, logits.detach(), compute_dtype=torch.float32, temperature=0.7)
    kl.sum().backward()
    assert kl.abs().max() < 1e-6
    assert logits.grad.abs().max() < 1e-6


@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.6, None), (0.6, 3.0)])
def test_it_equals_the_whole_vocabulary_at_once(temperature, cap):
    """Other widths, and a teacher with more rows, which no token has."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, head = random(5, 8).requires_grad_(), random(700, 8).requires_grad_()
    taught, teacher_head = random(5, 4), random(720, 4)
    weights = random(5)
    logits = hidden @ head.T
    logits = logits if cap is None else cap * (logits / cap).tanh()
    logprobs = (logits / temperature).log_softmax(-1)
    others = (0.5 * taught @ teacher_head[:700].T / temperature).log_softmax(-1)
    expected = (logprobs.exp() * (logprobs - others)).sum(-1)
    wanted = torch.autograd.grad((weights * expected).sum(), (hidden, head))
    kl = full_reverse_kl(
        hidden,
        Head(head, cap=cap),
        (taught, Head(teacher_head, scale=0.5)),
        temperature=temperature,
        block_size=256,
        **FLOAT64,
    )
    torch.testing.assert_close(kl.double(), expected, atol=1e-5, rtol=1e-5)
    actual = torch.autograd.grad((weights * kl).sum(), (hidden, head))
    torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


def test_it_is_the_mean_of_the_tokens_gradients():
    """sum_y p_y A_y grad log p_y, with A_y = log q_y - log p_y, is minus the KL's gradient."""
    generator = torch.Generator().manual_seed(2)
    logits, teacher_logits = torch.randn(2, 1, 9, generator=generator, dtype=torch.float64)
    probs = logits.softmax(-1)
    advantages = teacher_logits.log_softmax(-1) - logits.log_softmax(-1)
    # grad of log p_y to the logits is onehot(y) - p.
    of_tokens = probs * advantages - probs * (probs * advantages).sum()
    logits.requires_grad_()
    kl_of(logits, teacher_logits).sum().backward()
    torch.testing.assert_close(logits.grad, -of_tokens, atol=1e-6, rtol=0)
