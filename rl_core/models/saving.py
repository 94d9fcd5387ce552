"""An actor as a folder in the Hugging Face layout, which transformers and vLLM load as it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from rl_core.system.model_folder import INDEX, TOKENIZER_FILES, copy_files, files_of

_WEIGHTS: Final = "model.safetensors"


def part_file(file: str, part: int, size: int) -> str:
    """Returns the name of a shard, from 0, of a safetensors file, as Hugging Face names it."""
    stem = file.removesuffix(".safetensors")
    return file if size == 1 else f"{stem}-{part + 1:05}-of-{size:05}.safetensors"


def save_actor(
    model: transformers.PreTrainedModel,
    weights: Mapping[str, Tensor],
    tokenizer_from: Path,
    folder: Path,
) -> None:
    """Writes a model as a folder that transformers and vLLM load as it is, tokenizer included.

    The weights, see `complete_weights`, are written as they are, in float32; only the configuration
    is taken from `model`, whose own weights may change meanwhile.
    """
    model.save_pretrained(folder, state_dict=dict(weights))
    save_beside(model, tokenizer_from, folder)


def save_part(weights: Mapping[str, Tensor], folder: Path, part: int, size: int) -> None:
    """Writes a shard, counted from 0, of a model's weights, contiguous and on the CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / part_file(_WEIGHTS, part, size), metadata={"format": "pt"})


def save_beside(model: transformers.PreTrainedModel, tokenizer_from: Path, folder: Path) -> None:
    """Writes what `save_actor` does except the weights, which are float32."""
    model.config.dtype = torch.float32  # not that of the model's own weights
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    copy_files(tokenizer_from, TOKENIZER_FILES, folder)


def save_index(parts: Mapping[str, int], size: int, folder: Path) -> None:
    """Writes which of `size` parts has which weight."""
    index = {
        "metadata": {},
        "weight_map": {name: part_file(_WEIGHTS, part, size) for name, part in parts.items()},
    }
    text = json.dumps(index, indent=2, sort_keys=True)
    (folder / INDEX).write_text(text + "\n", encoding="utf-8")


def tokenizer_bytes(folder: Path) -> int:
    """Returns the size of the files that saving copies."""
    return sum(file.stat().st_size for file in files_of(folder, TOKENIZER_FILES))
