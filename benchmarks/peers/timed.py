"""Lets TRL's trainers take part in step_time.py: a callback, and a clock around `generate`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from workload import Gate


class Stepwise(TrainerCallback):  # type: ignore[misc]  # transformers leaves it untyped
    """Waits at the gate after each optimizer step: a step lasts from one to the next."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Reports the step."""
        self._gate.step_done()


def time_generation(model: Any, gate: Gate) -> None:
    """Counts the model's `generate` as a phase of its own."""
    generate = model.generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        with gate.phase("generate"):
            return generate(*args, **kwargs)

    model.generate = timed
