"""Which settings of the learner's ranks go together: one process has none of these limits."""

from __future__ import annotations


def check_ranks(ranks: int, *, gpus: float, mini_batch_size: int) -> None:
    """Compares `resources.learner_ranks` with the settings that it divides.

    Args:
        ranks: processes of the learner.
        gpus: `resources.learner_gpus`.
        mini_batch_size: prompts of an update.

    Raises:
        ValueError: if there is more than one rank, and some would have nothing to do, or no card.
    """
    if ranks == 1:
        return
    if mini_batch_size < ranks:
        raise ValueError(
            f"resources.learner_ranks={ranks} divide the prompts of a mini-batch, and "
            f"actor.mini_batch_size={mini_batch_size} leaves some without any: use at least "
            f"{ranks}, or at most {mini_batch_size} ranks"
        )
    if gpus not in (0, 1):
        raise ValueError(
            f"resources.learner_gpus={gpus:g} must be 1 (a card for each rank) or 0 (the CPU) with "
            f"resources.learner_ranks={ranks}"
        )
