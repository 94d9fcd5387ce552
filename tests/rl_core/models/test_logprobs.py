import math

import pytest
import torch
from torch import Tensor

from rl_core.models import logprobs, matmul
from rl_core.models.logprobs import Head, token_logprobs, token_logprobs_and_entropy

TOKENS, HIDDEN, VOCAB = 37, 16, 50


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype)
    weight = (torch.randn(VOCAB, HIDDEN, generator=generator) / 2).to(dtype)
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    scale: float = 1.0,
    cap: float | None = None,
) -> list[Tensor]:
    """All logits at once, by torch's own softmax and autograd."""
    logits = scale * (hidden @ weight.T).float()
    logits = logits if cap is None else cap * (logits / cap).tanh()
    logprobs = (logits / temperature).log_softmax(-1)
    chosen = logprobs[torch.arange(len(targets)), targets]
    return [chosen, -(logprobs.exp() * logprobs).sum(-1)]


def test_by_hand():
    # Logits 0 and 2 ln 3 at temperature 2: probabilities 1/4 and 3/4.
    weight = torch.tensor([[0.0], [2 * math.log(3)]])
    logprobs, entropy = token_logprobs_and_entropy(
        torch.ones(2, 1), Head(weight), torch.tensor([0, 1]), temperature=2.0
    )
    assert logprobs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    expected = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert entropy.tolist() == pytest.approx([expected] * 2)


def test_a_soft_cap_by_hand():
    # The product 3 at scale 2 and cap 6 gives 6 tanh(1), at temperature 3: 2 tanh(1) = 1.523188.
    head = Head(torch.tensor([[3.0], [0.0]]), scale=2.0, cap=6.0)
    state = torch.ones(1, 1).requires_grad_()
    logprob = token_logprobs(state, head, torch.tensor([0]), temperature=3.0)
    logprob.backward()
    assert logprob.item() == pytest.approx(-math.log(1 + math.exp(-1.523188)), abs=1e-6)
    # d logprob / d state: (1 - p) 3 * 2 / 3 (1 - tanh(1)^2), with 1 - p = 0.178992.
    assert state.grad.item() == pytest.approx(0.178992 * 2 * 0.419974, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("block_size", [1, 8, 50, 1_000])
@pytest.mark.parametrize("most_kept", [0, TOKENS * VOCAB])
@pytest.mark.parametrize("change", [(1.0, None), (0.3, None), (1.7, 2.0)])
def test_values_and_gradients_equal_the_plain_way(
    temperature, block_size, most_kept, change, monkeypatch
):
    monkeypatch.setattr(logprobs, "_KEPT_LOGITS", most_kept)
    hidden, weight, targets = inputs()
    weights = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(5))
    expected = plain(hidden, weight, targets, temperature, *change)
    actual = token_logprobs_and_entropy(
        hidden, Head(weight, *change), targets, temperature=temperature, block_size=block_size
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    # Logprob alone, entropy alone, and both: three paths of the backward pass.
    for choice in ([1.0, 0.0], [0.0, 1.0], [1.0, -0.3]):
        used = [i for i in (0, 1) if choice[i]]
        grads = [
            torch.autograd.grad(
                [choice[i] * (weights[i] * results[i]).sum() for i in used],
                [hidden, weight],
                retain_graph=True,
            )
            for results in (actual, expected)
        ]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_without_entropy_the_log_probs_are_the_same():
    hidden, weight, targets = inputs()
    both, _ = token_logprobs_and_entropy(
        hidden, Head(weight), targets, temperature=0.9, block_size=8
    )
    alone = token_logprobs(hidden, Head(weight), targets, temperature=0.9, block_size=8)
    assert torch.equal(both, alone)
    grads = [torch.autograd.grad(x.sum(), [hidden, weight]) for x in (both, alone)]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_a_frozen_head_leaves_the_gradient_of_the_states_right():
    hidden, weight, targets = inputs()
    frozen = weight.detach()
    logprobs = token_logprobs(hidden, Head(frozen), targets, temperature=1.0, block_size=8)
    (grad,) = torch.autograd.grad(logprobs.sum(), [hidden])
    (expected,) = torch.autograd.grad(plain(hidden, frozen, targets, 1.0)[0].sum(), [hidden])
    torch.testing.assert_close(grad, expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_products_keep_a_float32_softmax_and_float32_gradients():
    hidden, weight, targets = inputs()
    logprobs, entropy = token_logprobs_and_entropy(
        hidden, Head(weight), targets, temperature=1.0, compute_dtype=torch.bfloat16
    )
    # Operands are rounded to bfloat16; where the CPU multiplies such numbers, results are as well.
    expected = plain(hidden.bfloat16().float(), weight.bfloat16().float(), targets, 1.0)
    torch.testing.assert_close(logprobs, expected[0], atol=0.03, rtol=0.0)
    torch.testing.assert_close(entropy, expected[1], atol=0.03, rtol=0.0)
    (logprobs.sum() + entropy.sum()).backward()
    reference, reference_weight, _ = inputs()
    sum(x.sum() for x in plain(reference, reference_weight, targets, 1.0)).backward()
    for one, other in ((hidden.grad, reference.grad), (weight.grad, reference_weight.grad)):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("temperature", [0.6, 0.7, 1.3])
def test_a_temperature_rounds_no_bfloat16_state_again(temperature, monkeypatch):
    monkeypatch.setattr(matmul, "has_fast_bfloat16", lambda: False)  # whose products are rounded
    hidden, weight, targets = inputs(torch.bfloat16)
    actual = token_logprobs_and_entropy(hidden, Head(weight), targets, temperature=temperature)
    exact = [hidden.detach().double(), weight.detach().double()]
    expected = plain(exact[0], exact[1], targets, temperature)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-5, rtol=0.0)


def test_under_autocast_the_dtype_asked_for_is_used():
    hidden, weight, targets = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = token_logprobs(hidden, Head(weight), targets, temperature=1.0)
    outside = token_logprobs(hidden, Head(weight), targets, temperature=1.0)
    assert torch.equal(inside, outside)


def largest_allocation(block_size: int | None) -> int:
    """Bytes of the largest tensor of a forward and backward pass over 1,024 x 8,192 logits."""
    hidden, weight = (torch.randn(n, 8).requires_grad_() for n in (1_024, 8_192))
    targets = torch.zeros(1_024, dtype=torch.int64)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        logprobs, entropy = token_logprobs_and_entropy(
            hidden, Head(weight), targets, temperature=1.0, block_size=block_size
        )
        (logprobs.sum() + entropy.sum()).backward()
    return max(event.self_cpu_memory_usage for event in profile.events() or [])


def test_all_logits_never_exist_at_once():
    assert largest_allocation(block_size=8_192) == 2**25  # the measure sees them
    assert largest_allocation(block_size=64) <= 2**18
    assert largest_allocation(block_size=None) == 2**23


@pytest.mark.parametrize(("most", "num_kept"), [(TOKENS * VOCAB, 1), (TOKENS * VOCAB - 1, 0)])
def test_few_logits_are_kept_for_the_backward_pass_and_more_are_not(most, num_kept, monkeypatch):
    monkeypatch.setattr(logprobs, "_KEPT_LOGITS", most)
    hidden, weight, targets = inputs()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        token_logprobs(hidden, Head(weight), targets, temperature=1.0, block_size=8)
    assert sum(x.shape[-1] for x in saved if x.shape[:1] == (TOKENS,) and x.dim() == 2) == (
        HIDDEN + num_kept * VOCAB
    )


def test_logits_of_any_size_neither_overflow_nor_vanish():
    # The largest logit comes in the last block, so all sums before it are scaled down to it.
    weight = torch.tensor([[-128.0], [0.0], [127.0], [128.0]])
    hidden, targets = torch.ones(4, 1), torch.arange(4)
    logprobs, entropy = token_logprobs_and_entropy(
        hidden, Head(weight), targets, temperature=1.0, block_size=1
    )
    last = -math.log(1 + math.exp(-1))
    expected = [last - 256, last - 128, last - 1, last]
    assert logprobs.tolist() == pytest.approx(expected, abs=2e-5)
    share = math.exp(last)
    nats = -share * last - (1 - share) * (last - 1)
    assert entropy.tolist() == pytest.approx([nats] * 4, abs=2e-5)
