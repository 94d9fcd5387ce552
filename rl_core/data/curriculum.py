"""Which problems a step sees under `data.curriculum=pass_rate`: those whose outcome is least sure.

A problem that is always or never solved teaches nothing. Of a problem solved with probability p the
outcome varies by p (1 - p): so much can be learned from it (learnability: arXiv:2408.15099, of
prompts arXiv:2502.12272). Passes over the data are those of `sampling.epoch_order`; a problem whose
turn it is is taken with the probability p (1 - p) / the largest of all problems, so while nothing
is known all are taken.

p is the problem's estimated pass rate: its own results, shrunk towards the recent rate of all that
are about as hard (`difficulty_of`): of many problems most are asked once, and their like often.

The choice depends only on the seed and the outcomes of earlier steps, also if rollouts are
collected ahead: they are collected one step after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from rl_core.data.dataset import read_solved
from rl_core.data.sampling import epoch_order
from rl_core.envs.text_env import TextEnv

LEAST_WEIGHT: Final = 0.05
"""Of the surest problem: what is measured of it stays true only if it is asked now and then."""
CLASS_MEMORY: Final = 0.9
"""What a step leaves of the responses counted before it, of a class: about ten steps are seen."""
OWN_MEMORY: Final = 0.5
"""The same of a problem's own, when it is asked again: a pass or more has changed the policy."""
CLASS_RESPONSES: Final = 1.0
"""For how many of a problem's own responses the rate of its class stands."""
FILE: Final = "curriculum.safetensors"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CurriculumState:
    """Where the passes stand after a step, and what was measured up to it."""

    epoch: int
    """Pass over the data, from 0."""
    position: int
    """Place in its order that comes next."""
    asked: Floats
    """float64 [N], responses to each problem, older ones counting less."""
    solved: Floats
    """float64 [N], correct ones of them."""
    class_asked: Floats
    """float64 [C], responses to all problems of a class, likewise."""
    class_solved: Floats
    """float64 [C]."""


def difficulty_classes(env: TextEnv, file: Path) -> list[str]:
    """Returns a name per problem of a split; those of one name are about as hard."""
    return [
        f"{problem.data_source} {env.difficulty_of(problem.ground_truth, solution or '')}"
        for problem, solution in read_solved(file)
    ]


class Curriculum:
    """Chooses the problems of each step, counts what became of them, and can be resumed exactly.

    `classes` are those of all N problems, at least a batch. At most `ahead` steps are chosen before
    the one that is learned from. `checkpoint` is the folder that `save` wrote to after `step`;
    without one, nothing is known yet. ValueError if it is of other problems.
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        seed: int,
        batch_size: int,
        group_size: int,
        ahead: int = 0,
        step: int = 0,
        checkpoint: Path | None = None,
    ) -> None:
        names, class_of = np.unique(np.array(classes), return_inverse=True)
        self._class_of: npt.NDArray[np.int64] = class_of
        self._seed, self._batch_size, self._group_size = seed, batch_size, group_size
        state = CurriculumState(
            0, 0, *(np.zeros(size) for size in 2 * [len(classes)] + 2 * [len(names)])
        )
        if checkpoint is not None and (checkpoint / FILE).is_file():
            state = _read(checkpoint / FILE, like=state)
        self._ahead = ahead
        self._after = {step: state}
        self._held = state

    def choose(self, step: int) -> list[int]:
        """Returns the problems of the next step, as positions: `batch_size` different ones."""
        state = self._after[step - 1]
        weights, chosen = self.weights(step - 1), list[int]()
        epoch, position = state.epoch, state.position
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
            epoch, position = epoch + 1, 0
        position = int(places[-1]) + 1
        self._after[step] = replace(state, epoch=epoch, position=position)
        self._after.pop(step - self._ahead - 2, None)
        return chosen

    def observe(self, step: int, num_correct: Mapping[int, int]) -> dict[str, float]:
        """Counts the correct responses to each problem of the step that was chosen last.

        Returns the metrics `curriculum/*`.
        """
        before, state = self._after[step - 1], self._after[step]
        asked, solved = state.asked.copy(), state.solved.copy()
        indices = np.array(list(num_correct), dtype=np.int64)
        correct = np.array(list(num_correct.values()), dtype=np.float64)
        asked[indices] = OWN_MEMORY * asked[indices] + self._group_size
        solved[indices] = OWN_MEMORY * solved[indices] + correct
        classes, size = self._class_of[indices], len(state.class_asked)
        now_asked = self._group_size * np.bincount(classes, minlength=size)
        now_solved = np.bincount(classes, weights=correct, minlength=size)
        self._after[step] = replace(
            state,
            asked=asked,
            solved=solved,
            class_asked=CLASS_MEMORY * state.class_asked + now_asked,
            class_solved=CLASS_MEMORY * state.class_solved + now_solved,
        )
        places = [s.epoch * len(asked) + s.position for s in (before, state)]
        return {"curriculum/passed_over_frac": 1 - self._batch_size / (places[1] - places[0])}

    def weights(self, step: int) -> Floats:
        """Returns with which probability each problem is taken after a step, float64 [N]."""
        state = self._after[step]
        class_rate = (state.class_solved + 1) / (state.class_asked + 2)  # 1/2 while none is known
        known = state.solved + CLASS_RESPONSES * class_rate[self._class_of]
        rate = known / (state.asked + CLASS_RESPONSES)
        variance = rate * (1 - rate)
        weights: Floats = np.maximum(variance / variance.max(), LEAST_WEIGHT)
        return weights

    def hold(self, step: int) -> None:
        """Keeps the state after a step for `save`, whatever is observed from now on."""
        self._held = self._after[step]

    def save(self, folder: Path) -> None:
        """Writes the state that is held into a folder, from any thread."""
        arrays = {name: np.asarray(value) for name, value in vars(self._held).items()}
        folder.mkdir(exist_ok=True)
        save_file(arrays, folder / FILE)


def _read(file: Path, *, like: CurriculumState) -> CurriculumState:
    """Returns the state in a file, which must be of as many problems and classes."""
    saved = load_file(file)
    sizes = [
        f"{len(n['asked'])} problems of {len(n['class_asked'])} kinds" for n in (saved, vars(like))
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{file}: data.curriculum=pass_rate was measured on {sizes[0]}, and the data set has "
            f"{sizes[1]}: give the run the data that it began with, or begin another"
        )
    epoch, position = (int(saved.pop(name)) for name in ("epoch", "position"))
    return CurriculumState(epoch, position, **saved)
