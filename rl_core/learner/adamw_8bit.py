"""AdamW with 8-bit moments: that of bitsandbytes, with the names of its own state.

Both moments are quantized in blocks of 256 numbers: each number is one of 256 fractions, finer
towards 0, of the block's largest, which is kept in float32. A tensor of fewer than 4,096 numbers
keeps float32 moments, and so does one that learner ranks cut within a block: their shares would
have other scales than the whole. In real models such row sizes are rare.

Source: Dettmers et al. 2022 (arXiv:2110.02861).
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl_core.models.bitsandbytes import load_bitsandbytes
from rl_core.models.shares import cut_as, own_part

CONSTANTS = ("qmap1", "qmap2")
"""The number of each byte: the same in every tensor's state, and no part of a checkpoint."""
_BLOCK = 256
_SMALLEST = 4_096


def make_adamw_8bit(
    parameters: Sequence[nn.Parameter], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Returns the optimizer of float32 parameters, with AdamW's usual betas and eps.

    Raises:
        ValueError: bitsandbytes is not installed, or does not support this device.
    """
    optim = load_bitsandbytes("actor.optimizer=adamw_8bit", parameters[0].device).optim
    made: torch.optim.Optimizer = optim.AdamW8bit(parameters, lr=lr, weight_decay=weight_decay)
    return made


def fresh_state(optimizer: Any, share: nn.Parameter, of: nn.Parameter) -> dict[str, Any]:
    """Returns the state that a first step would make for a share; `optimizer` keeps none of it."""
    # By itself bitsandbytes decides by the size of the share.
    optimizer.args.min_8bit_size = 0 if _is_rounded(of) else sys.maxsize
    try:
        optimizer.init_state(optimizer.param_groups[0], share, 0, 0)
    finally:  # if memory runs out, pops a part of it
        state: dict[str, Any] = optimizer.state.pop(share, {})
    return state


def moments_like(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Returns, by field, tensors with the later moments' shape and dtype that take no memory."""
    size = parameter.numel()
    device = parameter.device
    if not _is_rounded(parameter):
        return {"state1": parameter.detach(), "state2": parameter.detach()}
    byte = torch.empty((), dtype=torch.uint8, device=device).expand(parameter.shape)
    largest = torch.empty((), device=device).expand(-(-size // _BLOCK))
    return {"state1": byte, "state2": byte, "absmax1": largest, "absmax2": largest}


def shape_when_cut(field: str, parameter: Tensor) -> Sequence[int]:
    """Returns the shape in which a field of AdamW's state is cut by rows as its parameter is.

    Scales of the fewest rows that fill whole blocks make one row.
    """
    if not field.startswith("absmax"):
        return parameter.shape
    rows = _rows_per_cut(parameter)
    return parameter.shape[0] // rows, rows * _row_size(parameter) // _BLOCK


def step_without_numbers(optimizer: torch.optim.Optimizer) -> None:
    """Counts the next step for empty shares, and skips these: kernels need at least a number."""
    for share, state in optimizer.state.items():
        if share.grad is not None and not share.numel():
            share.grad = None
            state["step"] += 1


def restored_state(
    optimizer: Any, share: nn.Parameter, of: nn.Parameter, saved: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Returns the state of a parameter's share from `saved`, the whole parameter's by field.

    Any number of ranks may have written that. Moments that only one of the two sides keeps in
    float32 are quantized or dequantized.
    """
    state = fresh_state(optimizer, share, of)
    functional = load_bitsandbytes("actor.optimizer=adamw_8bit", share.device).functional
    state["step"] = int(saved["step"])
    for number in ("1", "2"):
        moment = saved[f"state{number}"]
        largest = saved.get(f"absmax{number}")
        code = optimizer.name2qmap["dynamic" if number == "1" else "udynamic"].cpu()
        is_rounded = state[f"state{number}"].dtype == torch.uint8
        if largest is not None and not is_rounded:
            scales = largest.flatten()
            moment = functional.dequantize_blockwise(
                moment, absmax=scales, code=code, blocksize=_BLOCK
            )
        elif largest is None and is_rounded:
            moment, rounding = functional.quantize_blockwise(moment, code=code, blocksize=_BLOCK)
            largest = rounding.absmax
        fields = {f"state{number}": moment}
        if is_rounded:
            assert largest is not None
            fields[f"absmax{number}"] = largest
        for field, whole in fields.items():
            state[field] = _own_part(field, whole, of).to(share.device)
    return state


def _own_part(field: str, whole: Tensor, parameter: nn.Parameter) -> Tensor:
    is_flat = field.startswith("absmax")
    if isinstance(parameter, DTensor):
        whole = own_part(cut_as(parameter, whole.reshape(shape_when_cut(field, parameter))))
    return whole.flatten() if is_flat else whole


def _is_rounded(parameter: Tensor) -> bool:
    """Whether the parameter's moments have 8 bits, on all ranks."""
    if parameter.numel() < _SMALLEST:
        return False
    if not isinstance(parameter, DTensor):
        return True
    rows = parameter.shape[0]
    ranks = parameter.device_mesh.size()
    step = _rows_per_cut(parameter)
    return rows % step == 0 and math.ceil(rows / ranks) % step == 0


def _rows_per_cut(parameter: Tensor) -> int:
    """Returns the fewest rows that fill whole blocks."""
    return _BLOCK // math.gcd(_BLOCK, _row_size(parameter))


def _row_size(parameter: Tensor) -> int:
    return parameter.numel() // parameter.shape[0]
