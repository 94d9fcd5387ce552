"""A learner's side of a broadcast of weights, as a thread beside an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_core.models.weight_channel import WeightChannel, open_store
from rl_core.rollout.protocol import RolloutEngine
from rl_core.types import Meeting


def plain_weights(model: Any) -> dict[str, Tensor]:
    """A transformers model's tensors as a learner sends them: a tied one once."""
    names = {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


class Sender:
    """One that has met an engine."""

    def __init__(self, channel: WeightChannel, pool: ThreadPoolExecutor) -> None:
        self._channel, self._pool = channel, pool

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> Future[None]:
        """Sends these, in order, while the engine receives."""
        return self._pool.submit(self._channel.send, weights)


def meeting_at(
    port: int, weights: dict[str, Tensor], size: int = 2, timeout_s: float = 600.0
) -> Meeting:
    """Where tensors of these shapes are sent on loopback."""
    return Meeting(
        host="127.0.0.1",
        port=port,
        name="group_0",
        size=size,
        backend="gloo",
        dtype="float32",
        shapes={name: tuple(tensor.shape) for name, tensor in weights.items()},
        timeout_s=timeout_s,
    )


@contextmanager
def met(
    engine: RolloutEngine,
    weights: dict[str, Tensor],
    num_parts: int = 1,
    timeout_s: float = 600.0,
) -> Iterator[Sender]:
    """Yields who will send tensors of these shapes to an engine that has joined."""
    store = open_store("127.0.0.1")
    meeting = meeting_at(store.port, weights, 1 + num_parts, timeout_s)
    with ThreadPoolExecutor(1) as pool:
        channel = pool.submit(WeightChannel, meeting, 0, torch.device("cpu"))
        engine.join_broadcast(meeting, 1)
        yield Sender(channel.result(), pool)
