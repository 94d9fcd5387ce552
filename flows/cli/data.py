"""The command `countdown-train data`: first rows, columns and lengths of texts of parquet files."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flows.cli.commands import take_arguments
from flows.cli.terminal import say, show_rows
from flows.errors import BadInputError
from flows.runs.lookup import existing_run, run_first
from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder
from rl_core.data.gguf_source import local_folder
from rl_core.data.modelscope_source import find_model_here
from rl_core.runs.run_folder import RunFolder
from rl_core.system.process_env import without_torch
from rl_core.system.words import as_path
from tasks.made_folders import home_made_folder, is_complete
from tasks.queries.parquet_look import CountTokens, columns, describe_file, first_rows, text_lengths

_LOOKS: Final = ("head", "columns", "lengths")
_ROWS: Final = 5


def data(words: Sequence[str], *, output_format: str) -> None:
    """Shows one file, or the lengths of each split."""
    look, *named = [word for word in words if "=" not in word or Path(word).exists()] or [""]
    if look not in _LOOKS:
        raise BadInputError(f"data takes one of {', '.join(_LOOKS)} first, and then a FILE or none")
    arguments, settings = take_arguments("data", [w for w in words if w not in (look, *named)])
    if "column" in arguments and look != "lengths":
        raise BadInputError(f"data {look} shows all columns: column= is for lengths")
    count = _ROWS
    if look == "head" and named and re.fullmatch(r"-?\d+", named[0]):
        count = int(named.pop(0))
        if count < 1:
            raise BadInputError(f"data head {count}: the number of rows must be at least 1")
    places = [word for word in named if word.endswith(".parquet") or Path(word).exists()]
    if len(places) > 1:
        raise BadInputError(f"data {look} takes one FILE at a time, not {' and '.join(places)}")
    runs = [word for word in named if word not in places]
    has_run = bool(runs) or any(text.startswith("run_id=") for text in settings)
    words = run_first([*runs, *settings], "data")
    config, run = existing_run(words) if has_run else (compose(settings), None)
    place, why = (as_path(places[0]), "") if places else _dataset(config, run, settings)
    files = _files(place, arguments.get("split"), why)
    if look == "lengths":
        whose_tokens, count_tokens = _tokenizer(config, run)
        _show_lengths(files, arguments.get("column"), count_tokens, output_format)
        if output_format == "table":
            say(whose_tokens)
        return
    frame = first_rows(files[0], count) if look == "head" else columns(files[0])
    if output_format == "table":
        say(describe_file(files[0]))
    show_rows(frame, output_format)


def _dataset(config: RunConfig, run: RunFolder | None, settings: list[str]) -> tuple[Path, str]:
    """Returns the folder of a data set, and why it may be empty."""
    if run is None:
        words = " ".join(["countdown-train generate", *settings])
        return dataset_folder(config), f" yet, it is preset={config.preset}'s: {words}"
    if (folder := run.read().data) is None:
        raise BadInputError(f"run {run.run_id} did not get as far as a data set")
    return Path(folder), f": the data set of {run.run_id} was deleted"


def _files(place: Path, split: str | None, why: str) -> list[Path]:
    """Returns a file, or those of a folder that have the split: `train` first, `test` last."""
    if not place.is_dir() and not why:
        return [place]
    there = sorted(
        place.glob("[!.]*.parquet"),
        key=lambda file: (file.stem != "train", file.stem == "test", file),
    )
    if not there:
        raise BadInputError(f"{place} holds no parquet file{why}")
    if chosen := [file for file in there if split in (None, file.stem)]:
        return chosen
    raise BadInputError(
        f"no split={split} in {place} (there are: {', '.join(file.stem for file in there)})"
    )


def _show_lengths(
    files: Sequence[Path], column: str | None, count: CountTokens | None, output_format: str
) -> None:
    lengths = {file: text_lengths(file, column, count) for file in files}
    if output_format == "table":
        for file, rows in lengths.items():
            say(describe_file(file))
            show_rows(rows)
        return
    of_all = [{"file": str(file)} | row for file, rows in lengths.items() for row in rows]
    show_rows(of_all, output_format)


def _tokenizer(config: RunConfig, run: RunFolder | None) -> tuple[str, CountTokens | None]:
    """Returns, as text, whose tokens are counted, and a tokenizer that is here; fetches none."""
    model = _base_model(config) if run is None else run.read().model
    if model is None:
        return "no tokens: no model was made yet (model.path=FOLDER names one)", None
    folder = find_model_here(model)
    if folder is None:
        return f"no tokens: {model} is not on this machine (model.path=FOLDER names another)", None
    with without_torch():
        # With transformers, which no other look needs.
        from rl_core.data.prompts import count_tokens, load_tokenizer

        tokenizer = load_tokenizer(str(folder))

    def count(texts: Any) -> list[int]:
        as_prompts: list[Any] = [
            [{"role": "user", "content": text}] if isinstance(text, str) else text for text in texts
        ]
        # A conversation of several messages is nothing without a chat template.
        by_template = config.env.chat_template or any(len(prompt) != 1 for prompt in as_prompts)
        return count_tokens(as_prompts, tokenizer, chat_template=by_template)

    way = ", rendered by its chat template" if config.env.prompt_template == "chat" else ""
    return f"tokens are those of {model}{way}", count


def _base_model(config: RunConfig) -> str | None:
    if config.model.path is not None:
        return str(local_folder(config.model.path, config.storage.root))
    folder = home_made_folder(config)
    return str(folder) if is_complete(folder) else None
