"""The head of a report: which algorithm trained which model, by which command."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors import SafetensorError, safe_open

from rl_core.evaluation.rows import PAGE
from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord


def algorithm_in_words(run: RunFolder, settings: Mapping[str, Any]) -> str | None:
    """Returns estimator, loss, batch, learning rate, size and seed in a line; None if unknown."""
    try:
        algorithm, actor, data = (settings[name] for name in ("algorithm", "actor", "data"))
        facts = [
            f"{algorithm['estimator']} with the {actor['policy_loss']} loss",
            f"{data['train_batch_size']} prompts x {algorithm['group_size']} responses a step",
            f"learning rate {actor['lr']:g}",
            f"seed {settings['seed']}",
        ]
    except (KeyError, TypeError, ValueError):
        return None
    if size := _num_parameters(run):
        facts.insert(0, f"{size:,} parameters")
    return " · ".join(facts)


def model_in_words(run: RunFolder, record: RunRecord) -> str | None:
    """Returns the base model's folder; one next to the storage root without what leads there."""
    return record.model and record.model.removeprefix(f"{run.root.absolute().parent}/")


def command_of(record: RunRecord) -> str | None:
    """Returns the command that starts a run with the same settings; None if it was imported."""
    if record.preset == IMPORTED:
        return None
    settings = (
        shlex.quote(f"{key}={as_typed(value)}") for key, (_, value) in record.own_settings.items()
    )
    return " ".join(["countdown-train run", f"preset={shlex.quote(record.preset)}", *settings])


def as_typed(value: object) -> str:
    """Returns a setting's value as a user would type it."""
    if isinstance(value, list):
        return f"[{','.join(map(as_typed, value))}]"
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def answer_pages(run: RunFolder, models: Sequence[str | None]) -> dict[str, str]:
    """Returns the pages of the run's own evaluation that show every answer, by model."""
    pages = {model: f"eval/{model}{PAGE}" for model in models if model}
    return {model: page for model, page in pages.items() if (run.path / page).is_file()}


def _num_parameters(run: RunFolder) -> int:
    """Returns the number of weights of the latest checkpoint; 0 if it cannot be read."""
    total = 0
    try:
        for file in (run.path / "checkpoints" / "latest").glob("model*.safetensors"):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # it is no mapping
                    total += math.prod(tensors.get_slice(name).get_shape())
    except (OSError, SafetensorError):
        return 0
    return total
