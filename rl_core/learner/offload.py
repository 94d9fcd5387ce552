"""What a learner does not need all the time waits in the machine's memory, not on its card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rl_core.config.run import RunConfig


def offload_device(config: RunConfig, device: torch.device) -> torch.device | None:
    """Returns where reference and optimizer state wait for their use, None for where they are."""
    return torch.device("cpu") if config.resources.offload and device.type == "cuda" else None


@contextmanager
def on_device(model: nn.Module, device: torch.device, offload_to: torch.device) -> Iterator[None]:
    """Has a whole model on its device within the block; afterwards it is where it waits."""
    model.to(device)
    try:
        yield
    finally:
        model.to(offload_to)
