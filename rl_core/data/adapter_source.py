"""Stage 2: a PEFT adapter's folder -> a Hugging Face folder of its base with the adapter merged in.

Not an adapter that continues learning: all weights learn, or new adapters (`model.lora_rank`).
"""

import contextlib
import hashlib
import io
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_core.data.modelscope_source import find_model_here
from rl_core.system.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS,
    CHECKPOINT_MANIFEST,
    CONFIG,
    TOKENIZER,
    TOKENIZER_FILES,
    adapter_in,
    check_files,
    copy_files,
    files_of,
    read_object,
    tensors_of,
    weight_files,
)
from rl_core.system.plain_files import read_json
from rl_core.system.words import counted, cut, in_one_line

_logger = logging.getLogger(__name__)
_OF_MODULE: Final = re.compile(r"base_model\.model\.(.+)\.lora_(?:embedding_A|A\.weight)")
_PATTERNS: Final = ("rank_pattern", "alpha_pattern")
_NAMES: Final = (*_PATTERNS, "modules_to_save", "layers_pattern")
"""What PEFT matches with the names of all modules, as regular expressions."""
_MOST_ROUNDS: Final = 100
"""Of what finds the first weights by iteration (`pissa_niter_16`, LoftQ), also when it loads."""
_SLOW_PATTERN: Final = re.compile(r"\)[*+{]|([*+{].*){4}", re.DOTALL)
"""A regular expression that may take hours for a name of 50 characters."""


def base_of(model: Path) -> Path:
    """Returns the whole model that a folder's weights begin with: itself, or its adapter's base.

    ValueError as of `merge`.
    """
    adapter = adapter_in(model)
    return model if adapter is None else _base_of(adapter)


def base_digest(base: Path) -> str:
    """Returns the sha256 of a model's weights, of several files that of their digests' hex.

    A process reads a file once.
    """
    from rl_core.data.readers import digest_of, file_digest  # loads pyarrow

    files = [base / name for name in weight_files(base)]
    return file_digest(files[0]) if len(files) == 1 else digest_of(files)


def _base_of(adapter: Path) -> Path:
    """Returns the folder of an adapter's base.

    No hub is contacted: it would be for a name that the user did not type. If a checkpoint's base
    is gone, a folder of its name is looked for where `storage.root` is now.
    """
    name, digest = _named_base(adapter)
    base = find_model_here(name)
    if base is None and digest is not None:
        base = adapter.resolve().joinpath(*5 * [".."], *Path(name).parts[-2:]).resolve()
    if base is None or not (base / CONFIG).is_file():
        remedy = "put it back, or a link to it"
        if digest is None:  # else that file has a checksum
            remedy = f"set base_model_name_or_path in {ADAPTER_CONFIG}"
        why = f"it is an adapter of {name}, which is not on this machine"
        raise _refusal(adapter, f"{why}: fetch that first (hf download), or {remedy}")
    try:
        check_files(base)
        is_quantized = read_object(base / CONFIG).get("quantization_config")
        present = None if digest is None else base_digest(base)
    except ValueError as error:
        raise _refusal(adapter, f"its base {base}: {error}") from None
    if is_quantized:
        remedy = f"name the model that it was made from in {ADAPTER_CONFIG}"
        raise _refusal(adapter, f"its base {base} is quantized: {remedy}")
    if present != digest:
        why = f"its base {base} has weights of sha256 {present:.12}, and it was trained on those of"
        raise _refusal(adapter, f"{why} {digest:.12}: put these back there")
    return base


def _named_base(adapter: Path) -> tuple[str, str | None]:
    """Returns what an adapter calls its base, and the digest in the manifest of its checkpoint."""
    try:
        check_files(adapter)
        config = read_object(adapter / ADAPTER_CONFIG)
        manifest: Any = {}
        with contextlib.suppress(FileNotFoundError):
            manifest = read_json(adapter.parent / CHECKPOINT_MANIFEST)
    except ValueError as error:
        raise _refusal(adapter, str(error)) from None
    kind = config.get("peft_type")
    name = config.get("base_model_name_or_path")
    if config.get("megatron_config"):  # PEFT imports a module whose name stands in the file
        kind = "MEGATRON"
    if kind != "LORA":
        raise _refusal(adapter, f"an adapter of the kind {kind}, and only LORA can be merged")
    if not isinstance(name, str) or not name:
        raise _refusal(
            adapter, f"its base is not named: set base_model_name_or_path in {ADAPTER_CONFIG}"
        )
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise _refusal(
            adapter,
            f"it holds no {ADAPTER_WEIGHTS}, and pickles (*.bin) can execute code, so none is "
            "loaded: load it where you trust it, and save_pretrained",
        )
    digest = manifest.get("base_sha256") if isinstance(manifest, dict) else None
    return name, digest if isinstance(digest, str) else None


def _refusal(adapter: Path, why: str) -> ValueError:
    return ValueError(f"model.path={adapter}: {why}")


def merged_name(adapter: Path) -> str:
    """Returns a folder's name that changes with the adapter's bytes, and with its base's files."""
    from rl_core.data.readers import file_digest  # loads pyarrow, which a tokenizer does not need

    base = _base_of(adapter)
    stats = {file.name: file.stat() for file in base.glob("*.safetensors")}
    facts = [(name, one.st_size, one.st_mtime_ns) for name, one in sorted(stats.items())]
    digests = [file_digest(adapter / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    digest = hashlib.sha256(json.dumps([digests, str(base), facts]).encode()).hexdigest()
    return f"{_shown_name(adapter)}-{digest[:12]}"


def merge(adapter: Path, folder: Path) -> None:
    """Writes the merged model, float32, with the adapter's tokenizer or else its base's.

    ValueError in one line if the adapter or its base is not here, changed or unsuitable.
    """
    base = _base_of(adapter)
    _merged(adapter, base).save_pretrained(folder)
    has_own = bool(files_of(adapter, (TOKENIZER, "tokenizer.model")))
    copy_files(adapter if has_own else base, TOKENIZER_FILES, folder)


def merged_weights(adapter: Path) -> dict[str, Any]:
    """Returns the tensors of the merged model, float32, by name; ValueError as of `merge`."""
    return dict(_merged(adapter, _base_of(adapter)).state_dict())


def _merged(adapter: Path, base: Path) -> Any:
    import peft
    import torch
    import transformers
    from safetensors import safe_open

    _logger.info("merging the adapter %s into %s", _shown_name(adapter), base.name)
    safely: Any = {"use_safetensors": True, "output_loading_info": True}
    weights = adapter / ADAPTER_WEIGHTS
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # progress, and a library without a card
            model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
                base, dtype=torch.float32, trust_remote_code=False, **safely
            )
            if loaded["missing_keys"]:
                raise ValueError(f"the base lacks {min(loaded['missing_keys'])}")
            config = _bounded(peft.PeftConfig.from_pretrained(str(adapter)), weights)
            adapted = peft.PeftModel.from_pretrained(model, str(adapter), config=config)
        needed = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        with safe_open(weights, "pt") as tensors:
            unlike = needed.keys() ^ set(tensors.keys())  # PEFT only warns of these
        if wrong := sorted(name for name in unlike if name in needed or ".lora_" in name):
            raise ValueError(f"only one of the two has {counted(len(wrong), 'tensor')}: {wrong[0]}")
        whole: Any = adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # PEFT and transformers raise many kinds
        raise _refusal(
            adapter, f"it cannot be merged into {base} ({cut(in_one_line(error), 200)})"
        ) from error
    return whole


def _shown_name(adapter: Path) -> str:
    return (adapter.parent if adapter.name == ADAPTER_FOLDER else adapter).name


def _bounded(config: Any, weights: Path) -> Any:
    """Returns PEFT's settings without patterns that take hours; ValueError if they take memory."""
    tensors = tensors_of(weights)
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    patterns: dict[str, Mapping[str, Any]] = {
        name: getattr(config, name) or {} for name in _PATTERNS
    }
    if max([config.r, *patterns["rank_pattern"].values()]) > largest:
        raise ValueError(f"size mismatch: rank {config.r} or more, of tensors of {largest}")
    if config.layer_replication:
        raise ValueError("it repeats layers (layer_replication), which is not supported")
    beginning = f"{config.init_lora_weights} {config.loftq_config}"
    if max(map(int, re.findall(r"\d+", beginning)), default=0) > _MOST_ROUNDS:
        raise ValueError(f"its weights begin by more than {_MOST_ROUNDS} rounds ({beginning})")
    for name in _NAMES:
        names = getattr(config, name) or ()
        parts = [names] if isinstance(names, str) else names
        if slow := [pattern for pattern in parts if _SLOW_PATTERN.search(pattern)]:
            raise ValueError(f"{name} has the pattern {slow[0]}: write the names of modules")
    if isinstance(config.target_modules, str) or isinstance(config.exclude_modules, str):
        # Its file's own names say the same as a pattern, which PEFT would match with all modules.
        adapted = (_OF_MODULE.fullmatch(name) for name in tensors)
        config.target_modules = {match[1] for match in adapted if match}
        config.exclude_modules = None
    return config
