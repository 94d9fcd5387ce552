"""RESUME: the checkpoint from which training goes on, and in words what it could not go on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rl_core.checkpoints.damaged import damaged_folders, set_aside, step_of
from rl_core.checkpoints.retention import Checkpoint
from rl_core.checkpoints.store import (
    checkpoints_folder,
    find_damaged,
    latest,
    list_checkpoints,
    move_pointers,
)
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import locked

_SHAPE: Final = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Of `config.json`: what two models have in common if one began as the other."""


def checkpoint_to_resume(run: RunFolder, warn: Callable[[str], None]) -> Checkpoint | None:
    """Returns the newest sound checkpoint, or None: training starts at step 0.

    Damaged ones are set aside, so that a save of the same step does not replace them. What was
    passed over, why, and which steps are done again is told to `warn` and in the run's record.

    Raises:
        ValueError: there are checkpoints, and none is sound. Starting anew would throw away the
            metrics and rollouts of steps that a repaired one may yet go on from.
    """
    checkpoint = latest(run.path)
    damaged = find_damaged(run.path, checkpoint)
    words = [f"{path.name} is damaged ({what})" for path, what in damaged.items()]
    folder = checkpoints_folder(run.path)
    if checkpoint is None and (damaged or damaged_folders(folder)):
        words += [f"{path.name} is no checkpoint any more" for path in damaged_folders(folder)]
        raise ValueError(
            f"{run.run_id} has no sound checkpoint to go on from: {', '.join(words)}; put a whole "
            f"copy in place, or start anew with run_id=NAME (in {run.run_id} after removing "
            f"{folder})"
        )
    start_step = checkpoint.step if checkpoint else 0
    if damaged:
        with locked(folder):
            for path, what in damaged.items():
                set_aside(path, what)
            move_pointers(run.path)
    words += [
        f"{other.path.name} holds the model alone"
        for other in list_checkpoints(run.path)
        if other.step > start_step
    ]
    if words:
        sentence = f"{', '.join(words)}: {_goes_on(run, start_step)}"
        warn(sentence)
        run.note(sentence)
    return checkpoint


def check_same_model(run: RunFolder, checkpoint: Path, model_path: Path) -> None:
    """Compares a checkpoint with the model that a run is to go on with, as reference and tokenizer.

    Raises:
        ValueError: they have other shapes or other words, so the checkpoint began as another.
    """
    saved, given = (_read(folder / "config.json") for folder in (checkpoint, model_path))
    differ = [
        f"{key}={given[key]} and not {saved[key]}"
        for key in _SHAPE
        if key in saved and key in given and saved[key] != given[key]
    ]
    words, others = (_read(folder / "tokenizer.json") for folder in (checkpoint, model_path))
    if words and others and _vocabulary(words) != _vocabulary(others):
        differ.append("other words in its tokenizer")
    if differ:
        raise ValueError(
            f"{run.run_id} began with another model: {model_path} has {', '.join(differ)}; go on "
            "with the env, model.path and base_model that it began with, or choose another "
            "run_id=NAME"
        )


def _read(file: Path) -> dict[str, Any]:
    """Returns a JSON file's object, an empty one where there is no such file."""
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _vocabulary(tokenizer: dict[str, Any]) -> list[Any]:
    added = tokenizer.get("added_tokens") or []
    return [
        tokenizer.get("model", {}).get("vocab"),
        [(word.get("id"), word.get("content")) for word in added],
    ]


def remarks(run_folder: Path) -> list[str]:
    """Returns a sentence on each checkpoint of a run that cannot be resumed from, by step."""
    alone = [
        f"step {checkpoint.step} holds the model alone (the disk had no room for more): it can be "
        "evaluated, not resumed from"
        for checkpoint in list_checkpoints(run_folder)
        if not checkpoint.resumable
    ]
    return alone + [
        f"step {step_of(folder)} was damaged: it lies in {folder.name} until its room is needed"
        for folder in damaged_folders(checkpoints_folder(run_folder))
    ]


def _goes_on(run: RunFolder, start_step: int) -> str:
    """Returns where training goes on, and which steps are done again, in words."""
    last = run.metrics.last_step()
    goes_on = f"goes on after step {start_step}" if start_step else "starts anew"
    if last <= start_step:
        return f"training {goes_on}"
    first = start_step + 1
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"training {goes_on} and does {steps} again"
