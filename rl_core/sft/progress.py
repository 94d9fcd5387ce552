"""What a killed SFT goes on from: trained weights, optimizer and curve, as safetensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rl_core.system.atomic import disk_full_as_os_error, new_folder

_TENSORS: Final = "state.safetensors"
_CURVE: Final = "curve.json"
Row = dict[str, float]
"""A point of the curve: `step`, `loss`, and where it was measured `held_out_loss`."""


def save_progress(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, curve: list[Row]
) -> None:
    """Writes it, whole or not at all, in place of what was there.

    Raises:
        OSError: no room; what was there stands.
    """
    tensors = {name: tensor.detach().contiguous() for name, tensor in _tensors(model, optimizer)}
    with disk_full_as_os_error(folder.parent), new_folder(folder) as temporary:
        save_file(tensors, temporary / _TENSORS)
        (temporary / _CURVE).write_text(json.dumps(curve))


@torch.no_grad()
def load_progress(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Row]:
    """Restores what `save_progress` wrote and returns the curve; empty where nothing was."""
    if not (folder / _CURVE).is_file():
        return []
    tensors = load_file(folder / _TENSORS)
    for name, parameter in _learning(model):
        parameter.copy_(tensors[name])
        start = f"{name}/"
        optimizer.state[parameter] = {
            key.removeprefix(start): tensor.to(parameter.device)
            for key, tensor in tensors.items()
            if key.startswith(start)
        }
    curve: list[Row] = json.loads((folder / _CURVE).read_text())
    return curve


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in _learning(model):
        yield name, parameter
        state: dict[str, Any] = optimizer.state[parameter]
        for field, value in state.items():
            yield f"{name}/{field}", value


def _learning(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)
