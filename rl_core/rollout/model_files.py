"""What an engine reads from a model folder: its tensors, and the tokens that end a response."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rl_core.data.adapter_source import merged_weights
from rl_core.data.prompts import load_tokenizer, turn_end_id
from rl_core.models.folder_check import refuse_not_finite
from rl_core.system.model_folder import (
    CONFIG,
    GENERATION_CONFIG,
    adapter_in,
    read_object,
    weight_files,
)

_NAMES_SHOWN = 3


def weight_shapes(model_path: Path) -> dict[str, torch.Size]:
    """Returns the shape of every tensor that a weight update must contain, by Hugging Face name.

    A tied output embedding is not among them: it is the input embedding.
    """
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    tied = model.all_tied_weights_keys or {}
    return {name: x.shape for name, x in model.state_dict().items() if name not in tied}


def complete_weights(
    weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]
) -> dict[str, torch.Tensor]:
    """Returns the tensors named by `shapes`; ValueError if any is missing, unknown or misshapen.

    A partial update is refused because it corrupts silently: an engine fuses q, k and v into one
    matrix, and a push of only q leaves the others undefined.
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


def stop_token_ids(model_path: Path) -> tuple[int, ...]:
    """Returns the tokens that end a response: the generation config's, else the model config's.

    The token that ends a turn in the chat template is added, see `turn_end_id`. ValueError if no
    file names one, so no response would ever end, or it is no token.
    """
    generation = model_path / GENERATION_CONFIG
    stop = read_object(generation).get("eos_token_id") if generation.is_file() else None
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    if stop is None:
        stop = getattr(config, "eos_token_id", None)
    ids = tuple(stop) if isinstance(stop, list) else (stop,)
    files = f"{GENERATION_CONFIG} or {CONFIG}"
    if stop is None or not ids:
        raise ValueError(
            f"model.path={model_path}: no token ends a text, since no eos_token_id stands in "
            f"{files}: add the id of the model's end token"
        )
    num_tokens = config.get_text_config().vocab_size
    if not all(isinstance(one, int) and 0 <= one < num_tokens for one in ids):
        raise ValueError(
            f"model.path={model_path}: no token ends a text, since eos_token_id={stop} in {files} "
            f"is none of the model's {num_tokens:,} tokens: write the id of its end token"
        )
    turn_end = _turn_end_id(model_path)
    if turn_end is None or turn_end >= num_tokens or turn_end in ids:
        return ids
    return *ids, turn_end


def _turn_end_id(model_path: Path) -> int | None:
    try:
        return turn_end_id(load_tokenizer(str(model_path)))
    except ValueError:  # an engine needs no tokenizer
        return None


def finite_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor of a folder's safetensors files; ValueError if one is not finite."""
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # it is no dictionary
                tensor = tensors.get_tensor(key)
                refuse_not_finite(folder, key, tensor)
                yield key, tensor


def check_finite(folder: Path) -> None:
    """Raises ValueError if a tensor of a folder's safetensors files is not finite."""
    for _ in finite_weights(folder):
        pass


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Returns all tensors of a model's folder, on the CPU, an adapter's merged with its base's.

    ValueError without any, or as of `merge`.
    """
    if (adapter := adapter_in(folder)) is not None:
        return merged_weights(adapter)
    weights: dict[str, torch.Tensor] = {}
    try:
        names = weight_files(folder)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    for name in names:
        weights |= load_file(folder / name)
    return weights
