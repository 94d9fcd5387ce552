"""Resume: the checkpoint from which training continues, and why newer ones are skipped."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rl_core.checkpoints.manifest import Manifest, read_manifest
from rl_core.checkpoints.store import (
    Checkpoint,
    checkpoints_folder,
    find_damaged,
    latest,
    move_pointers,
)
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import base_digest
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import locked
from rl_core.system.named_code import source_digest
from rl_core.system.plain_files import read_json

_SHAPE: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Keys of `config.json`: equal in two models if one was trained from the other."""

CALLED_REWARD: Final = "a function given to rl_core.train"
"""Stands among a run's `own_code` if such a one was its reward: its file is not known."""

_MOST_BYTES: Final = 256 * 2**20
"""Of `tokenizer.json`."""


def checkpoint_to_resume(run: RunFolder, warn: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest sound checkpoint, or None: training starts at step 0.

    Newer, damaged ones are skipped; a save of the same step replaces them. `warn` and the run's
    record name them, the reasons, and the steps that are done again.

    Raises:
        ValueError: there are checkpoints, but none is sound. Starting anew would delete the metrics
        and rollouts of steps after which a repaired checkpoint could still continue.
    """
    checkpoint, damaged = newest_sound(run)
    if checkpoint is None or not damaged:
        return checkpoint
    words = _in_words(damaged)
    with locked(checkpoints_folder(run.path)):
        move_pointers(run.path, refused=damaged)
    sentence = f"{words}: training continues after step {checkpoint.step}"
    if (last := run.metrics.last_step()) > (first := checkpoint.step + 1):
        sentence += f" and does steps {first} to {last} again"
    elif last == first:
        sentence += f" and does step {first} again"
    warn(sentence)
    run.note(sentence)
    return checkpoint


def check_same_code(run: RunFolder, config: RunConfig, *, goes_on: bool) -> None:
    """Keeps in the run's record what the files of the user's algorithms and rewards hold.

    Raises:
        ValueError: the run `goes_on`, and a file has changed since: half of its steps would be of
            another algorithm.
    """
    kept = run.read().own_code
    digests = {name: source_digest(name) or "" for name in config.own_algorithms.values()}
    digests |= {name: source_digest(name) or "" for name in config.env.reward}
    for key, name in config.own_algorithms.items():
        if goes_on and kept.get(name, digests[name]) != digests[name]:
            raise ValueError(
                f"the file of {key}={name} has changed since {run.run_id} began: put the old one "
                "back, give the new function another name and name that, or choose another "
                "run_id=NAME"
            )
    if digests:
        run.update(own_code=kept | digests)


def newest_sound(run: RunFolder) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Returns the newest sound checkpoint, if there are any, and the damage of newer ones.

    ValueError as of `checkpoint_to_resume`.
    """
    checkpoint = latest(run.path)
    damaged = find_damaged(run.path, checkpoint)
    if checkpoint is None and damaged:
        folder = checkpoints_folder(run.path)
        raise ValueError(
            f"{run.run_id} has no sound checkpoint to continue from: {_in_words(damaged)}; put a "
            f"whole copy in place, or start again with run_id=NAME (in {run.run_id} after removing "
            f"{folder})"
        )
    return checkpoint, damaged


def _in_words(damaged: dict[Path, str]) -> str:
    return ", ".join(f"{path.name} is damaged ({what})" for path, what in damaged.items())


def check_same_model(run: RunFolder, checkpoint: Path, model_path: Path) -> None:
    """Raises ValueError if a checkpoint was trained from another model than `model_path`.

    Of a checkpoint of adapters this includes every byte of the weights.
    """
    saved, given = (_read(folder / "config.json") for folder in (checkpoint, model_path))
    differ = [
        f"{key}={given[key]} and not {saved[key]}"
        for key in _SHAPE
        if key in saved and key in given and saved[key] != given[key]
    ]
    words, others = (_read(folder / "tokenizer.json") for folder in (checkpoint, model_path))
    if words and others and _vocabulary(words) != _vocabulary(others):
        differ.append("other tokens in its tokenizer")
    manifest = read_manifest(checkpoint)
    if isinstance(manifest, Manifest) and (trained := manifest.base_sha256) is not None:
        present = base_digest(model_path)
        if present != trained:
            differ.append(f"weights of sha256 {present[:12]} and not {trained[:12]}")
    if differ:
        raise ValueError(
            f"{run.run_id} began with another model: {model_path} has {', '.join(differ)}; "
            "continue with the env, model.path and base_model that it began with, or choose "
            "another run_id=NAME"
        )


def _read(file: Path) -> dict[str, Any]:
    """Returns a JSON file's object, an empty one if there is no such file."""
    with suppress(FileNotFoundError):
        return dict(read_json(file, follow=True, most_bytes=_MOST_BYTES, deepest=100, finite=False))
    return {}


def _vocabulary(tokenizer: dict[str, Any]) -> list[Any]:
    added = tokenizer.get("added_tokens") or []
    return [
        tokenizer.get("model", {}).get("vocab"),
        [(word.get("id"), word.get("content")) for word in added],
    ]
