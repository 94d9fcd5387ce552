"""The learner's processes, seen from the trainer loop (stages 5 to 8): all are asked for the same.

Not here: the engines (cluster.py), what runs in each process (actors.py), what
ranks say to each other (learner/ranks.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import Any, Final, TypeAlias

from rl_core.errors import OutOfMemory, RankLost
from rl_core.resources.placement import learner_name
from rl_core.resources.token_budgets import merge_metrics
from rl_core.types import Rollout

Result: TypeAlias = Callable[[str, Future[Any]], Any]
"""Waits for the result of a worker by its name, and turns Ray's errors into ours."""
_NEWS_S: Final = 10.0
"""Ray says within some 2 s that a process is gone; the ranks that lost it say so at once."""


class LearnerRanks:
    """The learner of one run: one process, or several that hold a share of the weights each."""

    def __init__(
        self, actors: Sequence[Any], result: Result, on_progress: Callable[[str], None]
    ) -> None:
        self.actors = {learner_name(rank): actor for rank, actor in enumerate(actors)}
        self._first = actors[0]
        # An engine that starts again beside a step asks for weights from another thread: all ranks
        # must be asked for the same, in one order.
        self._asking = threading.Lock()
        self._result = result
        self._on_progress = on_progress

    def meet(self, hosts: Sequence[str], timeout_s: float) -> None:
        """Has several ranks find each other, before they load anything.

        `timeout_s` is how long a rank waits for another in a step.
        """
        size = len(self.actors)
        port = self._result(
            learner_name(0), self._first.open_meeting.remote(hosts[0], size).future()
        )
        self._together(
            actor.meet.remote(
                rank,
                size,
                host=hosts[0],
                port=port,
                own_host=hosts[rank],
                timeout_s=timeout_s,
            )
            for rank, actor in enumerate(self.actors.values())
        )

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step` (counted from 1, the first that is not yet learned).

        Returns:
            The step's metrics, and the rollout log's columns with one number per rollout.
        """
        self._on_progress("learn")
        start = time.perf_counter()
        told = self._together(actor.learn.remote(list(rollouts), step) for actor in self._all)
        metrics, columns = told[0]
        learner_s = sum(s for name, s in metrics.items() if name.startswith("timing_s/"))
        # From process to process and into tensors: what the learner's phases leave of the call.
        metrics["timing_s/handover"] = time.perf_counter() - start - learner_s
        if len(told) > 1:
            of_memory = [{k: x for k, x in m.items() if k.startswith("memory/")} for m, _ in told]
            metrics |= merge_metrics(of_memory)
        return metrics, columns

    def weights(self) -> Any:
        """Returns a reference to all weights: the tensors go from process to process."""
        if len(self.actors) > 1:
            self._together(actor.gather_weights.remote() for actor in self._all)
        return self._first.weights.remote()

    def snapshot(self) -> int:
        """Has the learner copy what a checkpoint holds, over the snapshot before."""
        self._on_progress("save")
        return sum(self._together(actor.snapshot.remote() for actor in self._all))

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot's checkpoint into `folder`; the learner works on meanwhile.

        Args:
            folder: an empty folder, with a name that no other has; made if missing.
        """
        self._on_progress("save")
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Future[Any]] = [
            actor.write_snapshot.remote(folder.resolve()).future() for actor in self._all
        ]
        wait(written)  # also where one has failed: the folder is not to be tidied under the others
        for name, part in zip(self.actors, written, strict=True):
            self._result(name, part)

    @property
    def _all(self) -> Sequence[Any]:
        return list(self.actors.values())

    def _together(self, pending: Any) -> list[Any]:
        """Waits for what each rank was asked; raises as soon as one has failed.

        Those that wait for one that has failed may never end. If it is gone they say so before Ray
        does: then it is waited for, a little, so that what is raised names the cause.

        Args:
            pending: a reference per rank, in their order, made while it is read.
        """
        with self._asking:
            futures = {ref.future(): name for ref, name in zip(pending, self.actors, strict=True)}
        wait(futures, return_when=FIRST_EXCEPTION)
        errors = self._errors(futures)
        if errors and all(isinstance(error, RankLost) for error in errors):
            wait(futures, timeout=_NEWS_S)
            errors = self._errors(futures)
        if errors:
            raise min(errors, key=_how_far_from_the_cause)
        return [self._result(name, future) for future, name in futures.items()]

    def _errors(self, futures: dict[Future[Any], str]) -> list[Exception]:
        errors = []
        for future, name in futures.items():
            if future.done() and future.exception() is not None:
                try:
                    self._result(name, future)
                except Exception as error:  # noqa: BLE001  # one of them is raised
                    errors.append(error)
        return errors


def _how_far_from_the_cause(error: Exception) -> int:
    return 0 if isinstance(error, OutOfMemory) else 2 if isinstance(error, RankLost) else 1
