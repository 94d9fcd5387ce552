"""Which problems a step sees: a function of the place in the data and the steps since.

The place is part of a checkpoint, so a resume goes on with the problems that were not asked yet,
whatever its batch size is.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rl_core.config.run import RunConfig


def steps_per_epoch(num_problems: int, batch_size: int) -> int:
    """Returns the full batches of one pass over the data, at least one, or raises ValueError."""
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


FILE: Final = "data.json"


@dataclass(frozen=True)
class Place:
    """How far the passes over the data have come after a step."""

    seed: int
    """Of the order, in which the passes began: a resume with another seed keeps it."""
    num_problems: int
    step: int = 0
    epoch: int = 0
    """Pass over the data, from 0."""
    taken: int = 0
    """Problems of its order that were asked."""


class ProblemOrder:
    """All problems in a shuffled order, pass after pass; each is asked at most once in a pass.

    Fewer problems than a batch, at the end of a pass, are left to the next pass' mix. `start` is
    where the first step begins.
    """

    def __init__(self, start: Place, batch_size: int) -> None:
        self._per_epoch = steps_per_epoch(start.num_problems, batch_size)
        self._start, self._batch_size = start, batch_size
        self._left = (start.num_problems - start.taken) // batch_size
        self._held = start

    def before(self, step: int) -> Place:
        """Returns the place in which a step, one after the start's, begins."""
        start, after = self._start, step - self._start.step - 1
        if after < self._left:
            taken = start.taken + after * self._batch_size
            return replace(start, step=step - 1, taken=taken)
        passes, steps = divmod(after - self._left, self._per_epoch)
        taken, epoch = steps * self._batch_size, start.epoch + 1 + passes
        return replace(start, step=step - 1, epoch=epoch, taken=taken)

    def choose(self, step: int) -> list[int]:
        """Returns the problems of a step."""
        place = self.before(step)
        order = epoch_order(place.seed, place.epoch, place.num_problems)
        return [int(i) for i in order[place.taken : place.taken + self._batch_size]]

    def last_step(self, *, total_epochs: int, total_steps: int | None) -> int:
        """Returns the step at which the run is finished: the start's, if it is already."""
        passes = total_epochs - self._start.epoch - 1
        left = self._left + passes * self._per_epoch if passes >= 0 else 0
        last = self._start.step + left
        return last if total_steps is None else min(last, total_steps)

    def hold(self, step: int) -> None:
        """Keeps the place after a step for `save`."""
        place = self.before(step)
        self._held = replace(place, step=step, taken=place.taken + self._batch_size)

    def save(self, folder: Path) -> None:
        """Writes the place that is held into a folder, from any thread."""
        folder.mkdir(exist_ok=True)
        (folder / FILE).write_text(json.dumps(asdict(self._held)), encoding="utf-8")


def read_place(config: RunConfig, num_problems: int, step: int, folder: Path | None) -> Place:
    """Returns the place after the step of the checkpoint in a folder, or for a new run the first.

    A checkpoint of an older version holds none: then all steps had the batch size of today.
    """
    if folder is not None and (folder / FILE).is_file():
        return Place(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    batch_size = config.data.train_batch_size
    epoch, steps = divmod(step, steps_per_epoch(num_problems, batch_size))
    return Place(config.seed, num_problems, step, epoch, steps * batch_size)


def epoch_order(seed: int, epoch: int, num_problems: int) -> npt.NDArray[np.int64]:
    """Returns in which order a pass over the data (from 0) has the problems, int64 [N]."""
    return np.random.default_rng([seed, epoch]).permutation(num_problems)
