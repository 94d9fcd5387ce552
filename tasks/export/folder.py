"""A checkpoint as a folder for others: weights in one type, tokenizer, model card; no run state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.sft.named_data import CURVE_NAME
from rl_core.system.atomic import disk_full_as_os_error, new_folder
from tasks.export.card import model_card
from tasks.queries.checkpoint_names import NamedModel

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_INDEX: Final = "model.safetensors.index.json"
_NOT_COPIED: Final = (MANIFEST, "warm_start.json", CURVE_NAME, "README.md", _INDEX)


def export_model(model: NamedModel, root: Path, *, dtype: str, to: Path) -> Path:
    """Writes a model's folder, whole or not at all, and returns it.

    Args:
        model: a checkpoint, whose adapters are merged already, or any other model's folder.
        root: `storage.root`.
        dtype: one of `DTYPES`; whole numbers stay what they are.
        to: the folder to make.

    Raises:
        ValueError: there is something at `to`, or a weight is too large for the type.
        OSError: no room.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"to={to} is there already: name a folder that is not, or empty it")
    with disk_full_as_os_error(to.absolute().parent), new_folder(to.absolute()) as temporary:
        for file in sorted(path for path in model.folder.iterdir() if path.is_file()):
            if file.suffix == ".safetensors":
                _write_weights(file, temporary / file.name, DTYPES[dtype])
            elif file.name not in _NOT_COPIED:
                shutil.copyfile(file, temporary / file.name)
        _write_index(model.folder, temporary)
        config = temporary / "config.json"
        settings: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        settings.pop("torch_dtype", None)
        config.write_text(json.dumps(settings | {"dtype": dtype}, indent=2) + "\n")
        (temporary / "README.md").write_text(model_card(model, root, dtype=dtype), encoding="utf-8")
    return to


def _write_weights(file: Path, target: Path, dtype: torch.dtype) -> None:
    """Casts one file, which is all that is in memory at a time."""
    weights = load_file(file)
    for name, weight in weights.items():
        if weight.is_floating_point():
            cast = weight.to(dtype)
            if torch.isinf(cast).any() and not torch.isinf(weight).any():
                raise ValueError(
                    f"{name} holds {weight.abs().max().item():g}, more than {dtype} can: "
                    "dtype=bfloat16 can"
                )
            weights[name] = cast
    save_file(weights, target, metadata={"format": "pt"})


def _write_index(source: Path, target: Path) -> None:
    """Of weights in several files: which file has which."""
    if (source / _INDEX).is_file():
        index = json.loads((source / _INDEX).read_text(encoding="utf-8"))
        total = sum(file.stat().st_size for file in target.glob("*.safetensors"))
        index["metadata"] = {"total_size": total}
        (target / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
