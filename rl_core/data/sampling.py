"""Chooses the problems of a step, from the position in the data and later steps.

The place is part of a checkpoint: a resume continues there, whatever its batch size is.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from rl_core.config.operations import TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.system.plain_files import read_json

_PLACE = "data.json"
_CURRICULUM = "curriculum.safetensors"
LEAST_WEIGHT: Final = 0.05
"""The smallest weight: a measured pass rate stays true only if its problem is asked at times."""
CLASS_MEMORY: Final = 0.9
"""Each step multiplies the older counts of a class by this: about ten steps count."""
OWN_MEMORY: Final = 0.5
"""The same for a problem's own counts: a pass or more later, the policy has changed."""
CLASS_RESPONSES: Final = 1.0
"""The pass rate of its class counts like this many of a problem's own responses."""

Floats = npt.NDArray[np.float64]


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
    order = ProblemOrder(Place(config.seed, num_problems), config.data.train_batch_size)
    return order.last_step(config.trainer)


@dataclass(frozen=True)
class Place:
    """How far the passes over the data have come after a step."""

    seed: int
    """Seed of the order, from the run's start: a resume with another seed keeps it."""
    num_problems: int
    step: int = 0
    epoch: int = 0
    """Pass over the data, from 0."""
    taken: int = 0
    """Problems of this pass that were asked already."""


class ProblemOrder:
    """All problems in a shuffled order, pass after pass; each is asked at most once in a pass.

    If fewer problems than a batch are left at the end of a pass, they wait for the next one.
    """

    def __init__(self, start: Place, batch_size: int) -> None:
        self._per_epoch = steps_per_epoch(start.num_problems, batch_size)
        self._start = start
        self._batch_size = batch_size
        self._left = (start.num_problems - start.taken) // batch_size
        self._held = start

    def before(self, step: int) -> Place:
        """Returns the place at which a step begins; it must be after the start's step."""
        start = self._start
        after = step - self._start.step - 1
        if after < self._left:
            taken = start.taken + after * self._batch_size
            return replace(start, step=step - 1, taken=taken)
        passes, steps = divmod(after - self._left, self._per_epoch)
        taken = steps * self._batch_size
        return replace(start, step=step - 1, epoch=start.epoch + 1 + passes, taken=taken)

    def choose(self, step: int) -> list[int]:
        """Returns the problems of a step."""
        place = self.before(step)
        order = epoch_order(place.seed, place.epoch, place.num_problems)
        return [int(i) for i in order[place.taken : place.taken + self._batch_size]]

    def spares(self, step: int) -> list[int]:
        """Returns all problems in the order in which they replace a step's groups."""
        place = self.before(step)
        draws = np.random.default_rng([place.seed, step, 1])
        return [int(i) for i in draws.permutation(place.num_problems)]

    def last_step(self, trainer: TrainerConfig) -> int:
        """Returns the step at which the run is finished: the start's step if it already is."""
        passes = trainer.total_epochs - self._start.epoch - 1
        left = self._left + passes * self._per_epoch if passes >= 0 else 0
        last = self._start.step + left
        return last if trainer.total_steps is None else min(last, trainer.total_steps)

    def hold(self, step: int) -> None:
        """Keeps the place after a step for `save`."""
        place = self.before(step)
        self._held = replace(place, step=step, taken=place.taken + self._batch_size)

    def save(self, folder: Path) -> None:
        """Writes the place that is held into a folder, from any thread."""
        folder.mkdir(exist_ok=True)
        (folder / _PLACE).write_text(json.dumps(asdict(self._held)), encoding="utf-8")


def read_place(config: RunConfig, num_problems: int, folder: Path | None) -> Place:
    """Returns the place that a checkpoint holds or, for a new run, the first one."""
    if folder is not None:
        return Place(**read_json(folder / _PLACE, below=folder))
    return Place(config.seed, num_problems)


def epoch_order(seed: int, epoch: int, num_problems: int) -> npt.NDArray[np.int64]:
    """Returns the order of the problems in a pass over the data (from 0), int64 [N]."""
    return np.random.default_rng([seed, epoch]).permutation(num_problems)


@dataclass(frozen=True)
class CurriculumState:
    """The place in the data after a step, and the pass rates measured until then."""

    epoch: int
    """Pass over the data, from 0."""
    position: int
    """Place of the next problem in the order of this pass."""
    responses: Floats
    """float64 [N], responses to each problem, older ones counting less."""
    solved: Floats
    """float64 [N], correct ones of them."""
    class_responses: Floats
    """float64 [C], responses to all problems of a class, likewise."""
    class_solved: Floats
    """float64 [C]."""


class Curriculum:
    """Chooses problems whose outcome is least certain (`data.curriculum=pass_rate`).

    A problem that is always or never solved teaches nothing. The outcome of a problem solved with
    probability p has the variance p (1 - p): so much can be learned from it (learnability:
    arXiv:2408.15099, of prompts arXiv:2502.12272). Passes over the data are those of `epoch_order`.
    In its turn, a problem is taken with the probability p (1 - p) / the largest of all problems, so
    all are taken while nothing is known.

    p is the problem's estimated pass rate: its own results, shrunk towards the recent rate of all
    that are about as hard (`difficulty_of`). In a large data set most problems are asked once, but
    similar ones often. The choice depends only on the seed and the outcomes of earlier steps, also
    if rollouts are collected ahead: they are collected one step after the other.

    `classes` has the class of each of the N problems, at least a batch. Steps are chosen at most
    `rollout.staleness` steps before they are learned from. `checkpoint` is the folder that `save`
    wrote to after `step`; without one, nothing is known yet. ValueError if it is of other problems.
    """

    def __init__(
        self,
        classes: Sequence[str],
        config: RunConfig,
        *,
        step: int = 0,
        checkpoint: Path | None = None,
    ) -> None:
        names, self._class_of = np.unique(np.array(classes), return_inverse=True)
        self._seed = config.seed
        self._batch_size = config.data.train_batch_size
        self._group_size = config.algorithm.group_size
        state = CurriculumState(
            0, 0, *(np.zeros(size) for size in 2 * [len(classes)] + 2 * [len(names)])
        )
        if checkpoint is not None and (checkpoint / _CURRICULUM).is_file():
            state = _read_state(checkpoint / _CURRICULUM, like=state)
        self._ahead = config.rollout.staleness
        self._after = {step: state}
        self._held = state

    def choose(self, step: int) -> list[int]:
        """Returns the problems of the next step, as positions: `batch_size` different ones."""
        state = self._after[step - 1]
        weights = self.weights(step - 1)
        chosen = list[int]()
        epoch = state.epoch
        position = state.position
        while True:
            order = epoch_order(self._seed, epoch, len(weights))
            draws = np.random.default_rng([self._seed, epoch, 2]).random(len(order))
            is_open = draws < weights[order]
            is_open[:position] = False
            is_open[np.isin(order, chosen)] = False
            places = np.flatnonzero(is_open)[: self._batch_size - len(chosen)]
            chosen += order[places].tolist()
            if len(chosen) == self._batch_size:
                break
            epoch += 1
            position = 0
        self._after[step] = replace(state, epoch=epoch, position=int(places[-1]) + 1)
        self._after.pop(step - self._ahead - 2, None)
        return chosen

    def spares(self, step: int) -> list[int]:
        """Returns all problems in the order in which they replace a step's groups.

        Each next one is drawn with a probability proportional to its weight (Efraimidis and
        Spirakis 2006: the largest of u^(1 / weight) come first).
        """
        weights = self.weights(step - 1)
        draws = np.random.default_rng([self._seed, step, 1]).random(len(weights))
        return [int(i) for i in np.argsort(np.log(draws) / weights)[::-1]]

    def observe(self, step: int, num_correct: Mapping[int, int]) -> dict[str, float]:
        """Counts the correct responses to each problem of the last step; returns `curriculum/*`."""
        before = self._after[step - 1]
        state = self._after[step]
        responses = state.responses.copy()
        solved = state.solved.copy()
        indices = np.array(list(num_correct), dtype=np.int64)
        correct = np.array(list(num_correct.values()), dtype=np.float64)
        responses[indices] = OWN_MEMORY * responses[indices] + self._group_size
        solved[indices] = OWN_MEMORY * solved[indices] + correct
        classes = self._class_of[indices]
        size = len(state.class_responses)
        now = self._group_size * np.bincount(classes, minlength=size)
        now_solved = np.bincount(classes, weights=correct, minlength=size)
        self._after[step] = replace(
            state,
            responses=responses,
            solved=solved,
            class_responses=CLASS_MEMORY * state.class_responses + now,
            class_solved=CLASS_MEMORY * state.class_solved + now_solved,
        )
        places = [s.epoch * len(responses) + s.position for s in (before, state)]
        return {"curriculum/passed_over_frac": 1 - self._batch_size / (places[1] - places[0])}

    def weights(self, step: int) -> Floats:
        """Returns the probability that each problem is taken after a step, float64 [N]."""
        state = self._after[step]
        # 1/2 while none is known.
        class_rate = (state.class_solved + 1) / (state.class_responses + 2)
        known = state.solved + CLASS_RESPONSES * class_rate[self._class_of]
        rate = known / (state.responses + CLASS_RESPONSES)
        variance = rate * (1 - rate)
        return np.asarray(np.maximum(variance / variance.max(), LEAST_WEIGHT))

    def hold(self, step: int) -> None:
        """Keeps the state after a step for `save`, whatever is observed from now on."""
        self._held = self._after[step]

    def save(self, folder: Path) -> None:
        """Writes the state that is held into a folder, from any thread."""
        folder.mkdir(exist_ok=True)
        save_file(
            {name: np.asarray(value) for name, value in vars(self._held).items()},
            folder / _CURRICULUM,
        )


def _read_state(file: Path, *, like: CurriculumState) -> CurriculumState:
    """Returns the state in a file, which must be of as many problems and classes."""
    # Checkpoints of earlier versions say `asked`: such a night can still be continued.
    saved = {name.replace("asked", "responses"): x for name, x in load_file(file).items()}
    sizes = [
        f"{len(state['responses'])} problems of {len(state['class_responses'])} kinds"
        for state in (saved, vars(like))
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{file}: data.curriculum=pass_rate was measured on {sizes[0]}, and the data set has "
            f"{sizes[1]}: give the run the data that it began with, or begin another"
        )
    epoch, position = (int(saved.pop(name)) for name in ("epoch", "position"))
    return CurriculumState(epoch, position, **saved)
