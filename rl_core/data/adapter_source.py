"""Stage 2: a PEFT adapter's folder -> a Hugging Face folder of its base with the adapter merged in.

Not an adapter that goes on learning: all weights learn, or new adapters (`model.lora_rank`).
"""

import contextlib
import hashlib
import io
import json
import logging
import shutil
from pathlib import Path
from typing import Any, Final

from rl_core.system.words import counted, cut, in_one_line

_logger = logging.getLogger(__name__)
_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_TOKENIZER: Final = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "chat_")
"""How the names of a tokenizer's files begin."""


def is_adapter(folder: Path) -> bool:
    """Says whether a folder holds an adapter, and no whole model."""
    return (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()


def _base_of(adapter: Path) -> Path:
    """Returns the folder of an adapter's base.

    No hub is contacted: it would be for a name that the user did not type.
    """
    from rl_core.data.prompts import find_model_here  # which imports this file

    try:
        config = json.loads((adapter / _CONFIG).read_bytes())
        kind, name = config["peft_type"], config["base_model_name_or_path"]
        if config.get("megatron_config"):  # PEFT imports a module whose name stands in the file
            kind = "MEGATRON"
    except (ValueError, LookupError, TypeError):
        raise _refusal(adapter, f"{_CONFIG} is damaged: copy the adapter again") from None
    if kind != "LORA":
        raise _refusal(adapter, f"an adapter of the kind {kind}, and only LORA can be merged")
    if not isinstance(name, str) or not name:
        raise _refusal(adapter, f"its base is not named: set base_model_name_or_path in {_CONFIG}")
    if not (adapter / _WEIGHTS).is_file():
        unsafe = "pickles (*.bin) can execute code, so none is loaded: load it where you trust it"
        raise _refusal(adapter, f"it holds no {_WEIGHTS}, and {unsafe}, and save_pretrained")
    base = find_model_here(name)
    if base is None or not (base / "config.json").is_file():
        remedy = "fetch that first (hf download), or set base_model_name_or_path in"
        why = f"it is an adapter of {name}, which is not on this machine: {remedy} {_CONFIG}"
        raise _refusal(adapter, why)
    if json.loads((base / "config.json").read_bytes()).get("quantization_config"):
        remedy = f"name the model that it was made from in {_CONFIG}"
        raise _refusal(adapter, f"its base {base} is quantized: {remedy}")
    return base


def _refusal(adapter: Path, why: str) -> ValueError:
    return ValueError(f"model.path={adapter}: {why}")


def merged_name(adapter: Path) -> str:
    """Returns a folder's name that changes with the adapter's bytes, and with its base's files."""
    from rl_core.data.readers import file_digest  # loads pyarrow, which a tokenizer does not need

    base = _base_of(adapter)
    stats = {file.name: file.stat() for file in base.glob("*.safetensors")}
    facts = [(name, one.st_size, one.st_mtime_ns) for name, one in sorted(stats.items())]
    digests = [file_digest(adapter / name) for name in (_CONFIG, _WEIGHTS)]
    digest = hashlib.sha256(json.dumps([digests, str(base), facts]).encode()).hexdigest()
    return f"{adapter.name}-{digest[:12]}"


def merge(adapter: Path, folder: Path) -> None:
    """Writes the merged model, float32, with the adapter's tokenizer or else its base's."""
    base = _base_of(adapter)
    _logger.info("merging the adapter %s into %s", adapter.name, base.name)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars, and a library without a card
        _merged(adapter, base).save_pretrained(folder)
    own = any((adapter / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    for file in (adapter if own else base).iterdir():
        if file.name.startswith(_TOKENIZER) and file.is_file():
            shutil.copyfile(file, folder / file.name)


def _merged(adapter: Path, base: Path) -> Any:
    import peft
    import torch
    import transformers
    from safetensors import safe_open

    safely: Any = {"use_safetensors": True, "output_loading_info": True}
    try:
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.float32, trust_remote_code=False, **safely
        )
        if loaded["missing_keys"]:
            raise ValueError(f"the base lacks {min(loaded['missing_keys'])}")
        adapted = peft.PeftModel.from_pretrained(model, str(adapter))
        needed = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        with safe_open(adapter / _WEIGHTS, "pt") as tensors:
            unlike = needed.keys() ^ set(tensors.keys())  # PEFT only warns of these
        if wrong := sorted(name for name in unlike if name in needed or ".lora_" in name):
            raise ValueError(f"only one of the two has {counted(len(wrong), 'tensor')}: {wrong[0]}")
        whole: Any = adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # PEFT and transformers raise many kinds
        why = f"it cannot be merged into {base} ({cut(in_one_line(error), 200)})"
        raise _refusal(adapter, why) from error
    return whole
