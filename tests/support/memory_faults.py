"""torch's own out-of-memory errors, raised in the middle of chosen passes of a real learner."""

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from rl_core.learner.learner import Learner

_EMBEDDINGS = ("Embedding", "VocabParallelEmbedding")
"""Of the tokens, which a pass looks up once: transformers' and vLLM's."""
MESSAGE = "CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.99 GiB"
SAID = "tried to allocate 4.64 GiB"
"""What our errors say of it."""


def last_norm(learner: Learner, phase: str) -> nn.Module:
    """The one module that every way through a model calls: after its last layer."""
    if phase == "ref":
        assert learner.models.reference is not None
        backbone = learner.models.reference.get_decoder()
    elif phase in ("values", "update_critic"):
        assert learner.models.critic is not None
        backbone = learner.models.critic.backbone
    else:
        backbone = learner.models.actor.get_decoder()
    assert isinstance(backbone.norm, nn.Module)
    return backbone.norm


@contextmanager
def out_of_memory(
    learner: Learner, phase: str, calls: Collection[int], *, backward: bool = False
) -> Iterator[list[int]]:
    """A model's n-th computation fails after its last layer, for n in `calls`; yields those."""
    numbers, failed = itertools.count(), list[int]()
    learns = phase.startswith("update_")

    def fail(number: int) -> None:
        failed.append(number)
        raise torch.OutOfMemoryError(MESSAGE)

    def look(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if torch.is_grad_enabled() != learns:
            return
        number = next(numbers)
        if number in calls:
            if not backward:
                fail(number)
            output.register_hook(lambda grad: fail(number))

    handle = last_norm(learner, phase).register_forward_hook(look)
    try:
        yield failed
    finally:
        handle.remove()


@contextmanager
def engine_out_of_memory(calls: Collection[int]) -> Iterator[list[int]]:
    """The n-th pass of any engine in this process fails, for n in `calls`.

    Of whichever engine, built before or meanwhile, vLLM's and transformers' alike; a learner does
    not infer. Yields a list of the calls that have failed.
    """
    numbers, failed = itertools.count(), list[int]()

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_inference_mode_enabled() and type(module).__name__ in _EMBEDDINGS:
            number = next(numbers)
            if number in calls:
                failed.append(number)
                raise torch.OutOfMemoryError(MESSAGE)

    handle = register_module_forward_hook(look)
    try:
        yield failed
    finally:
        handle.remove()
