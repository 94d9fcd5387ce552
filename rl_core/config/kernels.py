"""Which settings of kernels go together: those that stand are for one learner on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

KERNELS = ("use_torch_compile", "use_liger")
"""Settings of `model` that want a GPU."""


def check_kernels(asked: Mapping[str, bool], *, gpus: float, ranks: int) -> None:
    """Compares settings that want a GPU's kernels with the learner's device.

    Args:
        asked: settings by name, and whether they are on.
        gpus: `resources.learner_gpus`.
        ranks: `resources.learner_ranks`.

    Raises:
        ValueError: if one is on for a CPU, or for several ranks.
    """
    for name in (name for name, is_on in asked.items() if is_on):
        if gpus == 0:
            raise ValueError(
                f"{name}=true is for a GPU learner: resources.learner_gpus=0 must be above 0, or "
                "use false"
            )
        if ranks > 1:
            raise ValueError(
                f"{name}=true knows one learner process: resources.learner_ranks={ranks} must be "
                "1, or use false"
            )
