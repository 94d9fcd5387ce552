"""AdamW whose moments take a byte each: bitsandbytes', under the names of its own state.

Both moments are kept in blocks of 256 numbers, each as one of 256 parts, finer towards 0, of the
block's largest, which stands beside it in float32. A tensor of fewer than 4,096 numbers keeps
float32.

Source: Dettmers et al. 2022 (arXiv:2110.02861).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.models.bitsandbytes import load_bitsandbytes

CONSTANTS = ("qmap1", "qmap2")
"""What a byte stands for: the same in every tensor's state, and no part of a checkpoint."""
_BLOCK, _SMALLEST = 256, 4_096


def make_adamw_8bit(
    parameters: Sequence[nn.Parameter], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Returns the optimizer, with AdamW's usual betas and eps.

    Args:
        parameters: float32, whole: on one learner rank.
        lr: learning rate.
        weight_decay: decoupled.

    Raises:
        ValueError: bitsandbytes is not there, or knows nothing of this device.
    """
    optim = load_bitsandbytes("actor.optimizer=adamw_8bit", parameters[0].device).optim
    made: torch.optim.Optimizer = optim.AdamW8bit(parameters, lr=lr, weight_decay=weight_decay)
    return made


def fresh_state(optimizer: Any, parameter: nn.Parameter) -> dict[str, Any]:
    """Returns the state that the first step would make for a parameter, and leaves none behind."""
    try:
        optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)
    finally:  # where memory ends, a part of it
        state: dict[str, Any] = optimizer.state.pop(parameter, {})
    return state


def moments_like(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Returns, by field, tensors with shape and dtype of the moments to come, without memory."""
    size, device = parameter.numel(), parameter.device
    if size < _SMALLEST:
        return {"state1": parameter.detach(), "state2": parameter.detach()}
    byte = torch.empty((), dtype=torch.uint8, device=device).expand(parameter.shape)
    largest = torch.empty((), device=device).expand(-(-size // _BLOCK))
    return {"state1": byte, "state2": byte, "absmax1": largest, "absmax2": largest}
