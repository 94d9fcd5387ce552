"""What an engine must know of a model folder: its tensors, and where a response ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

_NAMES_SHOWN = 3


def weight_shapes(model_path: Path) -> dict[str, torch.Size]:
    """Returns the shape of every tensor that a weight update must bring, by Hugging Face name.

    With tied embeddings `lm_head.weight` is not among them: it is the input embedding.
    """
    config = AutoConfig.from_pretrained(model_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    return shapes


def complete_weights(
    weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]
) -> dict[str, torch.Tensor]:
    """Returns the tensors named by `shapes`, having checked that all are there.

    A partial update is refused because it corrupts silently: an engine fuses q, k and v into one
    matrix, and a push of q alone leaves the others undefined.

    Raises:
        ValueError: tensors are missing, unknown, or of another shape.
    """
    missing = [name for name in shapes if name not in weights]
    unknown = [name for name in weights if name not in shapes and name != "lm_head.weight"]
    misshapen = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(shape)}"
        for name, shape in shapes.items()
        if name in weights and weights[name].shape != shape
    ]
    for problem, names in (("missing", missing), ("unknown", unknown), ("misshapen", misshapen)):
        if names:
            raise ValueError(
                f"weight update refused, {len(names)} of {len(shapes)} tensors {problem}: "
                f"{', '.join(names[:_NAMES_SHOWN])}{', ...' if len(names) > _NAMES_SHOWN else ''}; "
                "push all tensors of the model at once"
            )
    return {name: weights[name] for name in shapes}


def check_complete(
    announced: Mapping[str, tuple[int, ...]], shapes: Mapping[str, torch.Size]
) -> None:
    """Raises ValueError as `complete_weights` would for tensors of these shapes."""
    with torch.device("meta"):
        complete_weights({name: torch.empty(size) for name, size in announced.items()}, shapes)


def stop_token_ids(model_path: Path) -> tuple[int, ...]:
    """Returns the tokens that end a response: the generation config's, else the model config's.

    Raises:
        ValueError: neither names one, so no response would ever end.
    """
    try:
        stop = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:  # the folder has no generation_config.json
        stop = None
    if stop is None:
        stop = getattr(AutoConfig.from_pretrained(model_path), "eos_token_id", None)
    if stop is None:
        raise ValueError(
            f"{model_path} names no eos_token_id in generation_config.json or config.json: "
            "responses would never end; add it"
        )
    return (stop,) if isinstance(stop, int) else tuple(stop)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Returns all tensors of a Hugging Face folder's safetensors files, on the CPU.

    Raises:
        ValueError: the folder holds no safetensors file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no *.safetensors file: give a saved model's folder")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        weights |= load_file(file)
    return weights
