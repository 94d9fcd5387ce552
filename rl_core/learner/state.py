"""What an exact resume needs beside the actor's weights, as safetensors and JSON (no pickle)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_core.config.run import RunConfig

STATE_FOLDER = "trainer"
"""Inside a checkpoint: what transformers does not need and a resume does."""
_TENSORS = "learner.safetensors"
_NUMBERS = "learner.json"
_VERSION = 1


def rng_tensors() -> dict[str, Tensor]:
    """Returns torch's random states, uint8."""
    states = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng.cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(tensors: Mapping[str, Tensor]) -> None:
    """Restores what `rng_tensors` returned."""
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings that say what a state's tensors are, for its numbers' `settings`."""
    rank = config.model.lora_rank
    return {
        "model.lora_rank": rank,
        "model.lora_alpha": config.model.lora_alpha if rank else None,
        "critic.share_trunk": config.critic.share_trunk,
    }


def check_settings(folder: Path, numbers: Mapping[str, Any], config: RunConfig) -> None:
    """Compares the settings of a run with those that a state was written with.

    Raises:
        ValueError: if they differ, so that the state's tensors are another model's, or none of a
            critic where one is trained.
    """
    if config.algorithm.estimator == "gae" and "critic_schedule" not in numbers:
        raise ValueError(
            f"{folder}: saved without a critic, so algorithm.estimator=gae cannot resume it"
        )
    saved = numbers["settings"]
    for name, value in model_settings(config).items():
        if saved[name] != value:
            raise ValueError(
                f"{folder}: saved with {name}={json.dumps(saved[name])}, "
                f"so {name}={json.dumps(value)} cannot resume it"
            )


def write_state(folder: Path, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Writes tensors and plain numbers to a folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(on_cpu, folder / _TENSORS)
    text = json.dumps({"version": _VERSION, **numbers}, indent=1, sort_keys=True)
    (folder / _NUMBERS).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors (on the CPU) and the numbers of a folder.

    Raises:
        ValueError: if the folder holds no learner state, or one of another version.
    """
    for name in (_TENSORS, _NUMBERS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: nothing to resume from, {name} is missing")
    numbers: dict[str, Any] = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    found = numbers.get("version")
    if found != _VERSION:
        raise ValueError(f"{folder / _NUMBERS}: version is {found}, this program reads {_VERSION}")
    return load_file(folder / _TENSORS), numbers
