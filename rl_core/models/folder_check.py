"""Returns whether a folder holds a model that can be trained, by its small files and headers only.

No tensor is read for that: a run that cannot start ends before anything loads. Numbers that are not
finite are found when a tensor is loaded, see `refuse_not_finite`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_core.system.model_folder import (
    CONFIG,
    StoredTensor,
    check_files,
    read_object,
    tensors_of,
    weight_files,
)
from rl_core.system.words import cut, in_one_line

if TYPE_CHECKING:
    from torch import Tensor

_TRAINABLE: Final = ("F64", "F32", "F16", "BF16")
_NAMES_SHOWN: Final = 3
_BLOCK_BYTES: Final = 2**20

_LOGIT_CHANGE: Final = "logits_mup_width_multiplier"

_HALVES: Final = ("encoder_layers", "audio_vocab_size")
"""Settings of decoders that continue something else than their own text."""

_WRONG_IN_VLLM: Final = ("diffllama", "doge", "gemma3n_text", "hrm_text", "youtu")
"""Kinds whose small models showed it with vLLM 0.32, see docs/models.md."""

Expected = dict[str, tuple[str, tuple[int, ...]]]
"""Each parameter's name without the prefix, and its shape, by its name in a file."""


def check_model_folder(folder: Path) -> None:
    """Checks that a folder holds all of a decoder-only causal LM that transformers has a class for.

    Raises:
        ValueError: `model.path=FOLDER: cause: remedy`, in one line.
    """
    try:
        config = _read_config(folder)
        _check_kind(config)
        there: dict[str, StoredTensor] = {}
        for name in weight_files(folder):
            there |= tensors_of(folder / name)
        expected, tied = _expected(folder, len(there))
        _check_tensors(expected, there)
        _check_tied(tied, there)
    except ValueError as error:
        raise ValueError(f"model.path={folder}: {error}") from error


def refuse_for_vllm(folder: Path) -> None:
    """Raises ValueError for a model that vLLM computes or updates otherwise than transformers."""
    if (why := _why_not_in_vllm(folder)) is not None:
        raise ValueError(f"model.path={folder}: {why}: set rollout.engine=hf")


def _why_not_in_vllm(folder: Path) -> str | None:
    config = read_object(folder / CONFIG)
    kind = config.get("model_type")
    names = (name for file in weight_files(folder) for name in tensors_of(folder / file))
    if any(".experts." in name or "_moe." in name for name in names):
        return (
            "it is a mixture of experts, whose weights vLLM does not replace rightly during "
            "training"
        )
    if "text_config" in config:
        return f"model_type={kind!r} reads pictures, too: vLLM needs torchvision, left out here"
    if kind in _WRONG_IN_VLLM:
        return f"vLLM computes model_type={kind!r} otherwise than transformers, or not at all"
    width = config.get("ffn_hidden_size")
    if kind == "falcon" and width not in (None, 4 * config.get("hidden_size", 0)):
        return f"ffn_hidden_size={width}, and vLLM takes 4 times hidden_size"
    return None


def refuse_not_finite(path: Path, name: str, weight: Tensor) -> None:
    """Raises ValueError if one of a model's tensors holds a NaN or an infinity."""
    # A sum takes no memory, and is finite if all numbers are, but for a rare overflow.
    if not weight.sum().isfinite() and not weight.isfinite().all():
        raise ValueError(
            f"model.path={path}: {name} holds numbers that are not finite (NaN or infinite): "
            "the model is damaged, take an earlier one"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise ValueError("no such model (a folder with config.json is needed)")
    check_files(folder)
    return read_object(folder / CONFIG)


def _check_kind(config: Mapping[str, Any]) -> None:
    if config.get("auto_map"):
        raise ValueError(
            "config.json asks for Python code of the folder (auto_map), which is never run: delete "
            "auto_map from it if transformers' own class is the same model"
        )
    if method := config.get("quantization_config"):
        name = method.get("quant_method", "") if isinstance(method, dict) else ""
        raise ValueError(f"its weights are quantized ({name}): take the model it was made from")
    import transformers
    from transformers.models.auto import modeling_auto

    kind = config.get("model_type")
    name = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    is_encoder = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    is_half = any(key in config for key in _HALVES)
    if name is None or is_encoder or is_half or config.get("is_encoder_decoder"):
        raise ValueError(
            f"config.json has model_type={kind!r}, which is no decoder-only causal LM of "
            f"transformers {transformers.__version__}: take one, such as Qwen2 or Llama"
        )
    made = getattr(transformers, name)
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    has_state = "linear_attention" in str(text.get("layer_types"))
    if has_state or getattr(made, "_is_stateful", False):
        raise ValueError(
            f"model_type={kind!r} carries a state from token to token instead of attention, which "
            "training here does not support: take a model with attention only, as Qwen2 or Llama"
        )
    if not getattr(made, "_supports_sdpa", False):
        raise ValueError(
            f"model_type={kind!r} has attention of its own, which torch's SDPA does not compute: "
            "take another model, such as Qwen2 or Llama"
        )
    if text.get(_LOGIT_CHANGE) not in (None, 1):
        raise ValueError(
            f"config.json has {_LOGIT_CHANGE}={text[_LOGIT_CHANGE]}: its logits are transformed "
            "after the output embedding, which log-probs from hidden states do not support: take "
            "another model"
        )


def _expected(folder: Path, num_stored: int) -> tuple[Expected, Mapping[str, str]]:
    """Returns the parameters that the files must hold, and which of the others is which of them.

    No parameters if transformers renames or joins a file's tensors when it loads them.
    """
    import torch
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping

    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        num_layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if num_layers > num_stored:  # building a million of them would take hours
            raise ValueError(f"{num_layers:,} layers, and its files hold {num_stored} tensors")
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever a class makes of settings that it never saw
        raise ValueError(
            "transformers builds no model from config.json "
            f"({cut(in_one_line(error), 200)}): copy it from the model again"
        ) from error
    head = model.get_output_embeddings()
    has_trunk = model.get_decoder() not in (head, model) and hasattr(
        config.get_text_config(), "num_hidden_layers"
    )
    if head is None or not has_trunk or getattr(head, "bias", None) is not None:
        raise ValueError(
            f"{type(model).__name__} is no trunk with a plain output embedding behind it, which "
            "log-probs from hidden states need: take another model, such as Qwen2 or Llama"
        )
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    if get_model_conversion_mapping(model, add_legacy=False):
        return {}, tied
    prefix = f"{model.base_model_prefix}."
    parameters = {
        name: (name.removeprefix(prefix), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if name not in tied
    }
    return parameters, tied


def _check_tensors(expected: Expected, there: Mapping[str, StoredTensor]) -> None:
    """Compares what the class needs with what the files hold."""
    tensors_of_names = {
        name: there.get(name) or there.get(short_name) for name, (short_name, _) in expected.items()
    }
    missing = [name for name, tensor in tensors_of_names.items() if tensor is None]
    if missing:
        more = ", ..." if len(missing) > _NAMES_SHOWN else ""
        raise ValueError(
            f"{len(missing)} of {len(expected)} tensors are in none of its files "
            f"({', '.join(missing[:_NAMES_SHOWN])}{more}), and would be random: copy the model "
            "again"
        )
    for name, (short_name, shape) in expected.items():
        tensor = tensors_of_names[name]
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, and config.json makes it {list(shape)}: "
                "the config is of another model, copy it again"
            )
        if name != short_name and name in there and short_name in there:
            raise ValueError(
                f"its files hold {name} and {short_name}, and libraries take different ones: copy "
                "the model again"
            )
    for name, tensor in there.items():
        if tensor.dtype not in _TRAINABLE:
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, and {', '.join(_TRAINABLE)} can be trained: "
                "take the model that it was made from"
            )


def _check_tied(tied: Mapping[str, str], there: Mapping[str, StoredTensor]) -> None:
    """Refuses a second tensor where config.json says that it is the first: vLLM ignores it."""
    for name, source in tied.items():
        if name in there and source in there and not _are_same(there[name], there[source]):
            raise ValueError(
                f"config.json ties {name} to {source} (tie_word_embeddings), and its files hold "
                f"other numbers for {name}, which transformers takes and vLLM does not: set "
                "tie_word_embeddings=false in config.json, or save the model without it"
            )


def _are_same(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.dtype, one.shape, one.num_bytes) != (other.dtype, other.shape, other.num_bytes):
        return False
    return all(map(eq, _blocks(one), _blocks(other)))


def _blocks(tensor: StoredTensor) -> Iterator[bytes]:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        for start in range(0, tensor.num_bytes, _BLOCK_BYTES):
            yield file.read(min(_BLOCK_BYTES, tensor.num_bytes - start))
