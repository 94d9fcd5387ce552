"""A model's folder as files: which are read and copied; none leads elsewhere or is damaged.

Not what a model is: `rl_core.models.folder_check` reads shapes, `rl_core.data.prompts` tokenizers.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Final, NamedTuple

from rl_core.system.plain_files import open_plain, read_plain
from rl_core.system.words import cut, disk_size, in_one_line

CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_FOLDER: Final = "adapter"
"""Inside a checkpoint. Beside `config.json` transformers would load it on top of what is merged."""
CHECKPOINT_MANIFEST: Final = "checkpoint.json"
INDEX: Final = "model.safetensors.index.json"
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_FILES: Final = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
"""What is copied with a model: a list of names, since a folder may hold anything else."""


class StoredTensor(NamedTuple):
    """Where a tensor's bytes are, by a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    num_bytes: int


_SINGLE: Final = "model.safetensors"
_OBJECTS: Final = (CONFIG, GENERATION_CONFIG, ADAPTER_CONFIG, *TOKENIZER_FILES[1:5])
_TEXTS: Final = ("chat_template.jinja", "merges.txt")
_MOST_BYTES: Final = 64 * 2**20
"""The largest are the index of a model of 100,000 tensors (9 MB) and a tokenizer (35 MB)."""
_MOST_HEADER_BYTES: Final = 16 * 2**20
"""18,000 tensors in one file, the experts of 48 layers, have a header of 2 MB."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_COPY_AGAIN: Final = "copy it from the model again"


def check_files(folder: Path) -> None:
    """Checks all files of a model's or an adapter's folder that a library would read from it.

    Raises:
        ValueError: `NAME ...: remedy`: it is a link that leads out, a Git LFS pointer, or damaged;
            or the folder holds a whole model and an adapter.
    """
    for file in sorted(folder.iterdir()):
        if not file.is_dir() or file.name == "additional_chat_templates":
            _real(file)
        if file.is_file() and file.name in (TOKENIZER, *_OBJECTS, *_TEXTS):
            content = _read_text(file)
            if file.name in _OBJECTS:
                _parsed(content, file.name)
    if (folder / CONFIG).is_file() and (folder / ADAPTER_CONFIG).is_file():
        raise ValueError(
            f"it holds a whole model ({CONFIG}) and an adapter ({ADAPTER_CONFIG}), and libraries "
            "take one or both: move the adapter's files to another folder"
        )


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object that a file of a model's folder holds; ValueError `NAME ...: remedy`.

    What is refused is also what only transformers would stumble over: a BOM, UTF-16.
    """
    return _parsed(_read_text(file), file.name)


def copy_files(folder: Path, names: Iterable[str], to: Path) -> None:
    """Copies the files with these names, if they are there; ValueError if a link leads out."""
    for file in files_of(folder, names):
        with open_plain(_real(file)) as source, (to / file.name).open("wb") as copy:
            copyfileobj(source, copy)


def files_of(folder: Path, names: Iterable[str]) -> list[Path]:
    """Returns those of the files that are there."""
    return [folder / name for name in names if (folder / name).is_file()]


def adapter_in(folder: Path) -> Path | None:
    """Returns the folder of the adapter if a folder holds one, and no weights of a whole model.

    It is the folder itself or, of a checkpoint whose weights are not merged, its `adapter/`.
    """
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file():
        return folder
    adapter = folder / ADAPTER_FOLDER
    is_whole = files_of(folder, (_SINGLE, INDEX))
    return adapter if (adapter / ADAPTER_CONFIG).is_file() and not is_whole else None


def weight_files(folder: Path) -> list[str]:
    """Returns the names of the safetensors files that transformers and vLLM load.

    Raises:
        ValueError: there is none, or the index is damaged or names one that is not there.
    """
    there = sorted(file.name for file in folder.glob("*.safetensors"))
    named = names_in_index(folder) if (folder / INDEX).is_file() else None
    if _SINGLE in there:
        of_engine = there if named is None else named
        if of_engine != [_SINGLE]:
            other = next(name for name in (*of_engine, INDEX) if name != _SINGLE)
            raise ValueError(
                f"it holds {_SINGLE} and {other}, and vLLM reads other files than transformers: "
                "move one of the two out of the folder"
            )
        return [_SINGLE]
    if named is None and there:
        raise ValueError(
            f"it holds {there[0]} without {INDEX}, which says which file has which tensor: copy "
            f"{INDEX} from the model, or load it where you trust it, and save_pretrained"
        )
    if named is None:
        raise ValueError(
            f"it holds no model.safetensors file (or {INDEX}), and pickles (*.bin, *.pt) can "
            "execute code, so none is loaded: load it where you trust it, and save_pretrained"
        )
    for name in named:
        # A name with a path in it would leave the folder.
        if Path(name).name != name or not (folder / name).is_file():
            raise ValueError(f"{INDEX} names {name}, which is not there: copy the model again")
    return named


def names_in_index(folder: Path) -> list[str]:
    """Returns the files that a model's index names; ValueError if it is damaged."""
    parts = read_object(folder / INDEX).get("weight_map")
    if not isinstance(parts, dict):
        raise ValueError(f"{INDEX} has no weight_map: {_COPY_AGAIN}")
    return sorted({str(part) for part in parts.values()})


def tensors_of(file: Path) -> dict[str, StoredTensor]:
    """Returns a safetensors file's tensors by name, and checks the file's length.

    Raises:
        ValueError: it is cut short, or damaged, or its header is too large.
    """
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(8)
        if start == _POINTER[:8]:
            raise ValueError(_is_pointer(file.name))
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size + 1
        if _MOST_HEADER_BYTES < length <= size:
            raise ValueError(
                f"{file.name} has a header of {disk_size(length)}, and at most "
                f"{disk_size(_MOST_HEADER_BYTES)} are read: save_pretrained writes several files"
            )
        header = content.read(length) if length <= size else b""
    tensors = {}
    needed = 8 + length
    try:
        for name, one in json.loads(header).items():
            if name != "__metadata__":
                first, end = one["data_offsets"]
                place = (file, 8 + length + int(first), int(end) - int(first))
                tensors[name] = StoredTensor(str(one["dtype"]), tuple(one["shape"]), *place)
                needed = max(needed, 8 + length + int(end))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file.name} is no safetensors file, or cut short in its header ({size:,} bytes): "
            "copy it again"
        ) from error
    if size != needed:
        raise ValueError(f"{file.name} has {size:,} bytes instead of {needed:,}: copy it again")
    return tensors


def _parsed(text: str, name: str) -> dict[str, Any]:
    reason = ""
    content: object = None
    try:
        content = json.loads(text)
    except RecursionError:
        reason = " (too many brackets)"
    except ValueError as error:
        reason = f" ({cut(in_one_line(error), 80)})"
    if not isinstance(content, dict):
        raise ValueError(f"{name} is no JSON object{reason}: {_COPY_AGAIN}")
    return content


def _read_text(file: Path) -> str:
    """Returns the text of a file that transformers reads as UTF-8."""
    content = read_plain(_real(file), most_bytes=_MOST_BYTES)
    if content.startswith(_POINTER):
        raise ValueError(_is_pointer(file.name))
    if content.startswith(b"\xef\xbb\xbf"):
        raise ValueError(
            f"{file.name} begins with a byte order mark (BOM), which libraries take for text: save "
            "it as UTF-8 without BOM"
        )
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{file.name} is not UTF-8: save it as UTF-8, or {_COPY_AGAIN}") from None


def _is_pointer(name: str) -> str:
    return (
        f"{name} is a pointer of Git LFS, and the file itself was not fetched: git lfs pull in "
        "that folder"
    )


def _real(file: Path) -> Path:
    """Returns the file that is read: a link may lead only into its own folder or a hub's cache."""
    if not file.is_symlink():
        return file
    from huggingface_hub import constants

    folder = file.parent.resolve()
    target = file.resolve()
    allowed = [folder, Path(constants.HF_HUB_CACHE).resolve()]
    if folder.parent.name == "snapshots":  # of a cache elsewhere: its files are ../../blobs/HASH
        allowed.append(folder.parents[1] / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise ValueError(
            f"{file.name} is a link that leads out of its folder, to {target}, which could be any "
            "file of yours: replace it by a copy if that is right, or delete it"
        )
    return target
