"""Micro-batches side by side on CPU threads, each computed by a single-threaded torch.

Not torch's own threads, which wait for each other after every small operation: two of them were 1.6
times as fast as one at best, 20 times as slow next to a busy process. Results are the same for any
number of threads.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
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

        Gradients are recorded if the caller's thread records them. An error is raised once no
        thread is at work any more, so that their memory is free.
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

        `micro_loss` returns an item's loss, a scalar, and its result; all results are returned. A
        loss without gradient adds nothing.
        """

        def add(item: Item) -> Result:
            loss, result = micro_loss(item)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return result

        if self._pool is None:
            return [add(item) for item in items]
        turns = _Turns(len(parameters))

        def add_in_turn(numbered: tuple[int, Item]) -> Result:
            number, item = numbered
            with turns.item(number):
                return add(item)

        with ExitStack() as hooks:
            for index, weight in enumerate(parameters):
                before = partial(turns.wait, index)
                after = partial(turns.added, index)
                hooks.enter_context(weight.register_hook(before))  # type: ignore[no-untyped-call]  # torch leaves both untyped
                hooks.enter_context(weight.register_post_accumulate_grad_hook(after))  # type: ignore[no-untyped-call]
            return list(self.map(add_in_turn, enumerate(items)))


class _Turns:
    """Makes passes side by side add to each parameter's `.grad` in the order of their items.

    Each adds a parameter's gradient as soon as it has it, so none holds one of the whole model.
    """

    def __init__(self, num_parameters: int) -> None:
        self._current = threading.local()
        self._changed = threading.Condition()
        self._next = [0] * num_parameters
        """By parameter: the number of the first item that may still add to it."""

    @contextmanager
    def item(self, number: int) -> Iterator[None]:
        """Lets this thread add an item's gradients; at the end, by an error too, it is done."""
        self._current.number = number
        try:
            yield
        finally:
            with self._changed:
                self._changed.wait_for(lambda: all(turn >= number for turn in self._next))
                self._next = [max(turn, number + 1) for turn in self._next]
                self._changed.notify_all()

    def wait(self, index: int, _grad: Tensor) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._next[index] >= self._current.number)

    def added(self, index: int, _parameter: Tensor) -> None:
        with self._changed:
            self._next[index] = self._current.number + 1
            self._changed.notify_all()
