"""What a launch script's checkpoints would cost on the disk of this machine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from rl_core.config.run import RunConfig
from rl_core.data.sampling import steps_per_epoch, total_steps
from rl_core.resources.disk_plan import checkpoint_bytes
from rl_core.resources.known_shapes import known_shape
from rl_core.resources.memory_plan import ModelShape
from tasks.importers.verl_files import num_problems
from tasks.importers.verl_values import Given, Settings, at, count, nested
from tasks.preflight_checks.finding import Finding

_LARGE_BYTES: Final = 10**9
"""Of a checkpoint: writing one takes seconds, so not after each step."""
_AT_LEAST: Final = 3
"""Checkpoints that the quota has room for: latest, best, and the one being written."""
_ROUND_BYTES: Final = 10**10
_BYTES_PER_PARAMETER: Final = 3 * 4
"""The weight and both moments, in float32."""


def disk_findings(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """What all checkpoints take, which verl keeps, against the disk.

    Gives them a quota that they fit into, and mends saving after each step.
    """
    every, problems = settings.get("trainer.save_freq"), num_problems(given, settings)
    try:
        config = RunConfig.model_validate(nested(settings))
        size = _checkpoint_bytes(config)
        if not isinstance(every, int) or problems is None or size is None:
            return
        if _AT_LEAST * size > config.checkpoints.quota_bytes:
            settings["checkpoints.quota_bytes"] = (
                -(-_AT_LEAST * size // _ROUND_BYTES) * _ROUND_BYTES
            )
        num_saves = total_steps(config, problems) // every
        per_epoch = steps_per_epoch(problems, config.data.train_batch_size)
    except (ValidationError, ValueError):
        return  # said of the preset as a whole
    kept = count(given, "trainer.max_actor_ckpt_to_keep")
    free = shutil.disk_usage(".").free
    num_kept = min(num_saves, kept or num_saves)
    too_often = every == 1 and size > _LARGE_BYTES
    if num_kept * size <= free and not too_often:
        return
    message = (
        f"saves {'after each step' if every == 1 else f'every {every} steps'}: {num_saves} "
        f"checkpoints of {size / 1e9:.1f} GB, of which verl keeps {kept or 'all'}, "
        f"{num_kept * size / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free"
    )
    if num_kept * size > free:
        message += f": full in step {(free // size + 1) * every:,}"
    remedy = "here old ones are deleted by checkpoints.keep_last and quota_bytes before each save"
    if too_often:
        default = RunConfig().trainer.save_freq
        settings["trainer.save_freq"] = seldom = min(per_epoch, default)
        remedy = f"the preset has trainer.save_freq={seldom}, and {remedy}"
    yield at(given["trainer.save_freq"].line, message, remedy)


def _checkpoint_bytes(config: RunConfig) -> int | None:
    """Returns the bytes of a checkpoint: of a known shape, else by the size in the model's name."""
    path = config.model.path
    if path is None:
        return None
    shape = known_shape(path)
    if shape is None:
        try:
            shape = ModelShape.from_folder(Path(path).expanduser())
        except (OSError, ValueError):
            size = re.search(r"(?<![A-Za-z\d])(\d+(?:\.\d+)?)[bB](?![A-Za-z])", path)
            models = 2 if config.algorithm.estimator == "gae" else 1
            return round(float(size[1]) * 1e9) * _BYTES_PER_PARAMETER * models if size else None
    return checkpoint_bytes(shape, config)
