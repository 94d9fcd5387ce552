"""The command `countdown-train data`: first rows, columns and lengths of texts of parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flows.cli.commands import LOOKS, take_arguments
from flows.cli.terminal import say, show_rows
from flows.errors import BadInputError
from flows.runs.lookup import existing_run, run_first, where_and_others
from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder
from rl_core.data.gguf_source import is_gguf_or_package, local_folder
from rl_core.runs.run_folder import RunFolder
from tasks.queries.parquet_look import (
    CountTokens,
    columns,
    describe_file,
    first_rows,
    text_lengths,
)

_ARGUMENTS: Final = ("split", "column", "run_id")
_ROWS: Final = 5


def data(words: Sequence[str], *, output_format: str) -> None:
    """Shows one file, or the lengths of each split."""
    named = [word for word in words if "=" not in word or Path(word).exists()]
    asked, settings = take_arguments([w for w in words if w not in named], _ARGUMENTS)
    if not named or named[0] not in LOOKS:
        raise BadInputError(f"data takes one of {', '.join(LOOKS)} first, and then a FILE or none")
    look, places = named[0], named[1:]
    count = _ROWS
    if look == "head" and places and places[0].isdigit():
        count = int(places.pop(0))
    for word in [word for word in places if _is_run(word, settings)]:
        places.remove(word)
        if asked.setdefault("run_id", word) != word:
            raise BadInputError(f"data takes one RUN, not {asked['run_id']} and {word}")
    if len(places) > 1:
        raise BadInputError(f"data {look} takes one FILE at a time, not {' and '.join(places)}")
    if "column" in asked and look != "lengths":
        raise BadInputError(f"data {look} shows all columns: column= is for lengths")
    if look == "lengths":
        _lengths(output_format, places, asked, settings)
        return
    (file,) = _files(places, asked, settings, default="train")
    frame = first_rows(file, count) if look == "head" else columns(file)
    if output_format == "table":
        say(describe_file(file))
    show_rows(frame, output_format)


def _is_run(word: str, settings: list[str]) -> bool:
    """Says whether a word that names no file names a run."""
    if "/" in word or Path(word).exists():
        return False
    root = compose(where_and_others(settings)[0]).storage.root
    return word == "latest" or RunFolder.under(root, word).is_there()


def _lengths(
    output_format: str, places: list[str], asked: dict[str, str], settings: list[str]
) -> None:
    files = _files(places, asked, settings, default=None)
    tokenizer, count_tokens = _tokenizer(asked, settings)
    found = [text_lengths(file, asked.get("column"), count_tokens) for file in files]
    rows = [
        {"file": str(file)} | row
        for file, lengths in zip(files, found, strict=True)
        for row in lengths.summary
    ]
    if output_format != "table":
        show_rows(rows, output_format)
        return
    for file, lengths in zip(files, found, strict=True):
        say(describe_file(file))
        show_rows(lengths.summary)
        say("\n".join([*lengths.histogram, ""]))
    say(tokenizer)


def _files(
    places: list[str], asked: dict[str, str], settings: list[str], *, default: str | None
) -> list[Path]:
    """Returns the files of `places` (a file, a folder, or none: then of a data set).

    `default`: the split to take if none is named; None for all.
    """
    if places:
        place = Path(places[0]).expanduser()
        if not place.is_dir():
            return [place]
        folder, why = place, ""
    else:
        folder, why = _dataset(asked, settings)
    split = asked.get("split", default)
    there = sorted(file for file in folder.glob("*.parquet") if not file.name.startswith("."))
    if not there:
        raise BadInputError(f"{folder} holds no parquet file{why}")
    if split is None:
        return sorted(there, key=lambda file: file.stem == "test")
    chosen = [file for file in there if file.stem == split]
    if chosen or "split" not in asked:
        return chosen or there[:1]
    names = ", ".join(file.stem for file in there)
    raise BadInputError(f"no split={split} in {folder} (there are: {names})")


def _settings_and_run(
    asked: dict[str, str], settings: list[str]
) -> tuple[RunConfig, RunFolder | None]:
    if "run_id" not in asked:
        return compose(settings, arguments=_ARGUMENTS), None
    of_run = run_first([asked["run_id"], *settings], "data")
    return existing_run(of_run, arguments=_ARGUMENTS)


def _dataset(asked: dict[str, str], settings: list[str]) -> tuple[Path, str]:
    """Returns the folder of a data set, and why it may be empty."""
    config, run = _settings_and_run(asked, settings)
    if run is None:
        words = " ".join(["countdown-train generate", *settings])
        return dataset_folder(config), f" yet, it is preset={config.preset}'s: {words}"
    folder = run.read().data
    if folder is None:
        raise BadInputError(f"run {run.run_id} did not get as far as a data set")
    return Path(folder), f": the data set of {run.run_id} was deleted"


def _tokenizer(asked: dict[str, str], settings: list[str]) -> tuple[str, CountTokens | None]:
    """Returns in words whose tokens are counted, and a tokenizer that is here; fetches none."""
    config, run = _settings_and_run(asked, settings)
    model = _base_model(config) if run is None else run.read().model
    is_chat = config.env.prompt_template == "chat"
    if model is None:
        return "no tokens: no model was made yet (model.path=FOLDER names one)", None
    # With transformers, which no other look needs.
    from rl_core.data.prompts import count_tokens, find_model_here, load_tokenizer

    folder = find_model_here(model)
    if folder is None:
        return f"no tokens: {model} is not on this machine (model.path=FOLDER names another)", None
    tokenizer = load_tokenizer(str(folder))

    def count(texts: Any) -> list[int]:
        as_prompts: list[Any] = [
            [{"role": "user", "content": text}] if isinstance(text, str) else text for text in texts
        ]
        # A conversation of several messages is nothing without a chat template.
        by_template = is_chat or any(len(messages) != 1 for messages in as_prompts)
        return count_tokens(as_prompts, tokenizer, chat_template=by_template)

    way = ", rendered by its chat template" if is_chat else ""
    return f"tokens are those of {model}{way}", count


def _base_model(config: RunConfig) -> str | None:
    path = config.model.path
    if path is not None:
        is_unpacked = is_gguf_or_package(path)
        return str(local_folder(path, config.storage.root)) if is_unpacked else path
    from tasks.base_model import home_made_folder, is_complete  # Prefect comes with it

    folder = home_made_folder(config)
    return str(folder) if is_complete(folder) else None
