"""Micro-batches side by side on CPU threads, each computed by a single-threaded torch.

Not torch's own threads: they meet after every small operation, which on two cores gained a factor
of 1.6 at best and, beside a busy neighbour, lost one of 20. Results do not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")
Result = TypeVar("Result")


class MicroBatchThreads:
    """A pool of `num_threads`, each with its activations; with one all runs in the caller's."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = (
            ThreadPoolExecutor(num_threads, "micro-batch", torch.set_num_threads, (1,))
            if num_threads > 1
            else None
        )

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yields `function(item)` in the order of the items, at most `num_threads` ahead.

        Whether gradients are recorded is the caller's choice, as without threads. An error arrives
        when no thread is at work any more: what they held is free.
        """
        grad_enabled = torch.is_grad_enabled()

        def call(item: Item) -> Result:
            with torch.set_grad_enabled(grad_enabled):
                return function(item)

        if self._pool is None:
            yield from map(call, items)
            return
        iterator = iter(items)
        while some := list(islice(iterator, self._num_threads)):
            futures = [self._pool.submit(call, item) for item in some]
            try:
                for future in futures:
                    yield future.result()
            finally:
                wait(futures)

    def accumulate(
        self,
        parameters: Sequence[nn.Parameter],
        micro_loss: Callable[[Item], tuple[Tensor, Result]],
        items: Iterable[Item],
    ) -> list[Result]:
        """Adds the gradient of the summed losses to `.grad`, in the order of the items.

        `micro_loss` returns an item's loss, a scalar, and what else is needed of it, of which a
        list is returned. A loss without gradient adds nothing.
        """
        if self._pool is None:
            results = []
            for item in items:
                loss, result = micro_loss(item)
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                results.append(result)
            return results

        def gradients(item: Item) -> tuple[tuple[Tensor | None, ...], Result]:
            loss, result = micro_loss(item)
            if not loss.requires_grad:
                return (None,) * len(parameters), result
            return torch.autograd.grad(loss, list(parameters), allow_unused=True), result

        results = []
        for grads, result in self.map(gradients, items):
            for parameter, grad in zip(parameters, grads, strict=True):
                if grad is not None:
                    parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
            results.append(result)
        return results
