import threading

import pytest
import torch
from torch import Tensor, nn

from rl_core.system.threads import MicroBatchThreads


def gradient(num_threads: int) -> tuple[Tensor, list[float]]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 3))
    unused = nn.Parameter(torch.ones(2))
    parts = [torch.randn(5, 4) * scale for scale in (1.0, 1e3, 1e-3, 10.0, 0.1)]

    def micro_loss(part: Tensor) -> tuple[Tensor, float]:
        loss = (part @ weight).square().sum()
        return loss, loss.item()

    losses = MicroBatchThreads(num_threads).accumulate([weight, unused], micro_loss, parts)
    assert unused.grad is None
    by_hand = sum(2 * part.T @ part @ weight.detach() for part in parts)
    assert torch.allclose(weight.grad, by_hand, rtol=1e-5)
    return weight.grad, losses


def test_gradients_are_the_same_bits_for_any_number_of_threads():
    grad, losses = gradient(1)
    for num_threads in (2, 3, 8):
        other, other_losses = gradient(num_threads)
        assert other.equal(grad)
        assert other_losses == losses


class _Below(torch.autograd.Function):
    """Runs a function in the backward pass, when all layers above have their gradients."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.function()
        return grad, None


def test_a_gradient_is_added_while_the_pass_goes_on():
    bottom, top = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    seen = {}

    def micro_loss(item: int) -> tuple[Tensor, int]:
        hidden = _Below.apply(bottom * item, lambda: seen.setdefault(item, top.grad.tolist()))
        return (hidden * top).sum(), item

    MicroBatchThreads(2).accumulate([bottom, top], micro_loss, [1, 10])
    assert seen[10] == [11.0, 11.0]  # both passes' share, in the layer that is done
    assert bottom.grad.tolist() == top.grad.tolist() == [11.0, 11.0]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_passes_that_add_nothing_keep_nobody_waiting(num_threads):
    used, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def micro_loss(item: int) -> tuple[Tensor, int]:
        if item == 0:
            return torch.zeros(()), item
        return ((used if item % 2 else other) * item).sum(), item

    done = MicroBatchThreads(num_threads).accumulate([used, other], micro_loss, range(6))
    assert done == list(range(6))
    assert (used.grad.item(), other.grad.item()) == (1 + 3 + 5, 2 + 4)


def test_a_pass_that_fails_half_way_keeps_nobody_waiting_and_leaves_no_hooks():
    bottom, top = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def micro_loss(item: int) -> tuple[Tensor, None]:
        hidden = _Below.apply(bottom * item, (lambda: 1 / 0) if item == 1 else lambda: None)
        return (hidden * top).sum(), None

    threads = MicroBatchThreads(2)
    with pytest.raises(ZeroDivisionError):
        threads.accumulate([bottom, top], micro_loss, [1, 2])
    bottom.grad = top.grad = None
    threads.accumulate([bottom, top], micro_loss, [2, 3])
    assert (bottom.grad.item(), top.grad.item()) == (5.0, 5.0)


def test_results_come_in_order_and_the_callers_grad_mode_holds_in_the_threads():
    threads = MicroBatchThreads(2)
    both_are_there = threading.Barrier(2, timeout=300)

    def look(item: int) -> tuple[int, bool, int]:
        both_are_there.wait()  # two items at a time, or this breaks
        return item, torch.is_grad_enabled(), torch.get_num_threads()

    with torch.no_grad():
        assert list(threads.map(look, range(4))) == [(i, False, 1) for i in range(4)]
    assert list(threads.map(look, range(2))) == [(0, True, 1), (1, True, 1)]


def test_an_error_arrives_when_no_other_thread_is_at_work_any_more():
    has_failed, is_done = threading.Event(), threading.Event()

    def work(item: int) -> int:
        if item == 0:
            has_failed.set()
            raise MemoryError
        has_failed.wait(300)
        for _ in range(1_000):
            torch.ones(64, 64).sum()
        is_done.set()
        return item

    with pytest.raises(MemoryError):
        list(MicroBatchThreads(2).map(work, range(2)))
    assert is_done.is_set()
