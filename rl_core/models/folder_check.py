"""Says whether a folder holds a model that can be trained, by its small files and headers only.

No tensor is read for that: a run that cannot start ends before anything loads. Numbers that are not
finite are found when a tensor is loaded, see `refuse_not_finite`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_core.system.words import cut, in_one_line

if TYPE_CHECKING:
    from torch import Tensor

_TRAINABLE: Final = ("F64", "F32", "F16", "BF16")
_MOST_HEADER_BYTES: Final = 100_000_000
"""The limit of safetensors' own reader."""
_NAMES_SHOWN: Final = 3

Shape = tuple[int, ...]


def check_model_folder(folder: Path) -> None:
    """Checks that a folder holds all of a decoder-only causal LM that transformers has a class for.

    Raises:
        ValueError: `model.path=FOLDER: cause: remedy`, in one line.
    """
    try:
        config = _read_config(folder)
        _check_kind(config)
        _check_tensors(_expected(folder), tensor_shapes(folder))
    except ValueError as error:
        raise ValueError(f"model.path={folder}: {error}") from error


def refuse_not_finite(path: Path, name: str, weight: Tensor) -> None:
    """Raises ValueError if one of a model's tensors holds a NaN or an infinity."""
    # A sum takes no memory, and is finite if all numbers are, but for a rare overflow.
    if not weight.sum().isfinite() and not weight.isfinite().all():
        raise ValueError(
            f"model.path={path}: {name} holds numbers that are not finite (NaN or infinite): "
            "the model is damaged, take an earlier one"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError("no such model (a folder with config.json is needed)")
    return _json(file)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} is no JSON object: copy it from the model again")
    return content


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
    if name is None or is_encoder or config.get("is_encoder_decoder"):
        raise ValueError(
            f"config.json has model_type={kind!r}, which is no decoder-only causal LM of "
            f"transformers {transformers.__version__}: take one, such as Qwen2 or Llama"
        )
    if getattr(getattr(transformers, name), "_is_stateful", False):
        raise ValueError(
            f"model_type={kind!r} carries a state from token to token instead of attention, which "
            "training here does not support: take a model with attention only, as Qwen2 or Llama"
        )


def _expected(folder: Path) -> dict[str, tuple[str, Shape]]:
    """Returns each parameter's name without the prefix, and its shape, by its name in a file.

    Empty if transformers renames or joins a file's tensors when it loads them.
    """
    import torch
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping

    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever a class makes of settings that it never saw
        raise ValueError(
            "transformers builds no model from config.json "
            f"({cut(in_one_line(error), 200)}): copy it from the model again"
        ) from error
    if get_model_conversion_mapping(model, add_legacy=False):
        return {}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    prefix = f"{model.base_model_prefix}."
    return {
        name: (name.removeprefix(prefix), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if name not in tied
    }


def _check_tensors(
    expected: Mapping[str, tuple[str, Shape]], there: Mapping[str, tuple[str, Shape]]
) -> None:
    """Compares what the class needs with what the files hold."""
    found = {
        name: there.get(name) or there.get(short_name) for name, (short_name, _) in expected.items()
    }
    missing = [name for name, tensor in found.items() if tensor is None]
    if missing:
        more = ", ..." if len(missing) > _NAMES_SHOWN else ""
        raise ValueError(
            f"{len(missing)} of {len(expected)} tensors are in none of its files "
            f"({', '.join(missing[:_NAMES_SHOWN])}{more}), and would be random: copy the model "
            "again"
        )
    for name, (_, shape) in expected.items():
        tensor = found[name]
        if tensor is not None and tensor[1] != shape:
            raise ValueError(
                f"{name} has shape {list(tensor[1])}, and config.json makes it {list(shape)}: the "
                "config is of another model, copy it again"
            )
    for name, (dtype, _) in there.items():
        if dtype not in _TRAINABLE:
            raise ValueError(
                f"{name} has dtype {dtype}, and {', '.join(_TRAINABLE)} can be trained: take the "
                "model that it was made from"
            )


def tensor_shapes(folder: Path) -> dict[str, tuple[str, Shape]]:
    """Returns dtype and shape of all tensors of the files that transformers loads.

    Raises:
        ValueError: there is no such file, or one is cut short or damaged.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        names = [single.name]
    elif index.is_file():
        parts = _json(index).get("weight_map")
        names = sorted({str(part) for part in parts.values()} if isinstance(parts, dict) else ())
    else:
        raise ValueError(
            "it holds no model.safetensors file (or model.safetensors.index.json), and pickles "
            "(*.bin, *.pt) can execute code, so none is loaded: load it where you trust it, and "
            "save_pretrained"
        )
    tensors: dict[str, tuple[str, Shape]] = {}
    for name in names:
        # A name with a path in it would leave the folder.
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"{index.name} names {name}, which is not there: copy the model again")
        tensors |= _header(folder / name)
    return tensors


def _header(file: Path) -> dict[str, tuple[str, Shape]]:
    """Returns dtype and shape of a safetensors file's tensors, and checks the file's length."""
    size = file.stat().st_size
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
            if length > min(size, _MOST_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = json.loads(content.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        needed = (
            8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        )
        shapes = {name: (one["dtype"], tuple(one["shape"])) for name, one in tensors.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error) as error:
        raise ValueError(
            f"{file.name} is no safetensors file, or cut short in its header ({size:,} bytes): "
            "copy it again"
        ) from error
    if size != needed:
        raise ValueError(f"{file.name} has {size:,} bytes instead of {needed:,}: copy it again")
    return shapes
