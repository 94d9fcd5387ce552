"""Which settings of kernels go together: those that stand are for a GPU."""

from __future__ import annotations

from rl_core.config.model import ModelConfig

_PLAIN = {"use_torch_compile": False, "use_liger": False, "attention": "sdpa"}
"""Settings of `model` that want a GPU, and what wants none."""


def check_kernels(model: ModelConfig, *, gpus: float) -> None:
    """Compares settings that want a GPU's kernels with the learner's device.

    Args:
        model: its settings.
        gpus: `resources.learner_gpus`.

    Raises:
        ValueError: if one is on for a CPU.
    """
    for name, plain in _PLAIN.items():
        value = getattr(model, name)
        if value == plain:
            continue
        asked, instead = f"model.{name}={value}".replace("True", "true"), str(plain).lower()
        if gpus == 0:
            raise ValueError(
                f"{asked} is for a GPU learner: resources.learner_gpus=0 must be above 0, or "
                f"use {instead}"
            )
