"""What an exact resume needs besides the actor's weights, as safetensors and JSON (no pickle)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_core.config.run import RunConfig
from rl_core.models.saving import part_file
from rl_core.system.plain_files import read_json

STATE_FOLDER = "trainer"
"""Inside a checkpoint: what transformers does not need and a resume does."""
_TENSORS = "learner.safetensors"
_NUMBERS = "learner.json"
_VERSION = 1


def rng_tensors() -> dict[str, Tensor]:
    """Returns torch's random states, uint8; of a card only if this process computes on one."""
    states = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        states["rng.cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(tensors: Mapping[str, Tensor]) -> None:
    """Restores what `rng_tensors` returned."""
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings that say what a state's tensors are, for its numbers' `settings`."""
    rank = config.model.lora_rank
    return {
        "model.lora_rank": rank,
        "model.lora_alpha": config.model.lora_alpha if rank else None,
        "actor.optimizer": config.actor.optimizer,
        "model.load_in_4bit": config.model.load_in_4bit,
    }


def check_settings(folder: Path, numbers: Mapping[str, Any], config: RunConfig) -> None:
    """Refuses a state whose settings differ from a run's: its tensors would be another model's.

    Raises:
        ValueError: they differ, or a critic is trained and the state has none.
    """
    if config.algorithm.formula.needs_critic and "critic_schedule" not in numbers:
        name = config.algorithm.estimator
        raise ValueError(
            f"{folder}: saved without a critic, so algorithm.estimator={name} cannot resume it"
        )
    saved = numbers["settings"]
    for name, value in model_settings(config).items():
        if saved[name] != value:
            raise ValueError(
                f"{folder}: saved with {name}={json.dumps(saved[name])}, "
                f"so {name}={json.dumps(value)} cannot resume it"
            )


def write_state(
    folder: Path,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
    rank: int = 0,
    size: int = 1,
) -> None:
    """Writes a rank's tensors to a file of its own; the first rank also writes the plain numbers.

    All `size` ranks share the folder, which is made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = [part_file(_TENSORS, part, size) for part in range(size)]
    save_file(on_cpu, folder / files[rank])
    if rank == 0:
        known = {"version": _VERSION, "files": files}
        text = json.dumps({**known, **numbers}, indent=1, sort_keys=True)
        (folder / _NUMBERS).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors (on the CPU) and the numbers of a folder.

    Raises:
        ValueError: if the folder holds no learner state, or one of another version.
    """
    demand_file(folder / _NUMBERS)
    numbers: dict[str, Any] = read_json(folder / _NUMBERS, below=folder, finite=False)
    if (version := numbers.get("version")) != _VERSION:
        raise ValueError(
            f"{folder / _NUMBERS}: its version is {version} and not {_VERSION}: report and sql "
            "read the run, training does not continue"
        )
    tensors: dict[str, Tensor] = {}
    for file in numbers.pop("files"):
        part = folder / Path(file).name  # no path: it would lead to another folder
        demand_file(part)
        tensors |= load_file(part)
    return tensors, numbers


def demand_file(file: Path) -> None:
    """Raises ValueError if a file that a resume needs is missing."""
    if not file.is_file():
        raise ValueError(f"{file.parent}: nothing to resume from, {file.name} is missing")
