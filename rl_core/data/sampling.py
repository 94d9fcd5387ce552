"""Which problems a step sees: a function of (seed, step) alone, which a resumed run repeats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rl_core.config.run import RunConfig


def steps_per_epoch(num_problems: int, batch_size: int) -> int:
    """Returns the full batches of one pass over the data; the rest is left to the next epoch's mix.

    Raises:
        ValueError: there are fewer problems than one batch needs.
    """
    if num_problems < batch_size:
        raise ValueError(
            f"data.train_batch_size={batch_size} is above the {num_problems} training problems: "
            "no step could be filled"
        )
    return num_problems // batch_size


def total_steps(config: RunConfig, num_problems: int) -> int:
    """Returns the step at which the run is finished."""
    epochs = config.trainer.total_epochs
    steps = epochs * steps_per_epoch(num_problems, config.data.train_batch_size)
    return min(steps, config.trainer.total_steps or steps)


def batch_indices(*, seed: int, step: int, num_problems: int, batch_size: int) -> list[int]:
    """Returns the problems of `step` (counted from 1): each once per epoch at most."""
    epoch, position = divmod(step - 1, steps_per_epoch(num_problems, batch_size))
    order = epoch_order(seed, epoch, num_problems)
    return [int(i) for i in order[position * batch_size : (position + 1) * batch_size]]


def epoch_order(seed: int, epoch: int, num_problems: int) -> npt.NDArray[np.int64]:
    """Returns in which order a pass over the data (from 0) has the problems, int64 [N]."""
    return np.random.default_rng([seed, epoch]).permutation(num_problems)
