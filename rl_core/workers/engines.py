"""The rollout engines of a run, seen from the trainer loop (stage 3): who is asked what.

Not here: Ray's session and the learner (cluster.py), what runs in an engine's process (actors.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any, TypeAlias

from rl_core.resources.placement import engine_name
from rl_core.resources.token_budgets import log_out_of_memory, merge_metrics
from rl_core.rollout.protocol import in_order
from rl_core.system.atomic import reading
from rl_core.types import Completion, GenerationRequest, SamplingSettings

Result: TypeAlias = Callable[[str, Future[Any]], Any]
"""Waits for the result of a worker by its name, and turns Ray's errors into ours."""
_PORTIONS = 16
"""Calls in which an engine hands over its completions: each costs about a millisecond."""


class Engines:
    """The rollout engines of one run.

    Args:
        actors: Ray's handles of them, in their order.
        result: see `Result`.
        on_progress: hears the name of a phase when it begins or is a piece further.
    """

    def __init__(
        self, actors: Sequence[Any], result: Result, on_progress: Callable[[str], None]
    ) -> None:
        self._actors = actors
        self._result = result
        self._on_progress = on_progress

    def stream(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        phase: str = "gen",
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions of all engines with their requests' positions, soon after each ended.

        In no fixed order, a sixteenth of an engine's share at a time. Where memory runs out, those
        under way are generated again, fewer at a time.

        Args:
            requests: what to generate.
            sampling: how.
            phase: what it is for, `gen` or `evaluate`, if memory should run out.
        """
        self._on_progress("gen")
        share, rest = divmod(len(requests), len(self._actors))
        ends = itertools.accumulate(share + (i < rest) for i in range(len(self._actors)))
        sources: dict[Future[Any], tuple[int, int]] = {}
        for i, (start, end) in enumerate(itertools.pairwise((0, *ends))):
            engine, limit = self._actors[i], -(-(end - start) // _PORTIONS) or 1
            # All are asked for at once, so that an engine need not wait for us between two.
            pending = [engine.begin.remote(list(requests[start:end]), sampling, phase)]
            pending += [engine.next_finished.remote(limit) for _ in range(start, end, limit)]
            sources |= {portion.future(): (i, start) for portion in pending}
        for portion in as_completed(sources):
            i, start = sources[portion]
            self._on_progress("gen")
            for position, completion in self._result(engine_name(i), portion) or ():
                yield start + position, completion

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request of an evaluation, in order, from all engines."""
        completions = in_order(self.stream(requests, sampling, "evaluate"))
        log_out_of_memory(None, self.end_step())
        return completions

    def end_step(self) -> dict[str, float]:
        """Returns the engines' metrics of memory since the last call, see `AdaptiveEngine`."""
        return merge_metrics(self._ask_all(actor.end_step.remote() for actor in self._actors))

    def update_weights(self, weights: Any) -> None:
        """Gives every engine new weights, in place.

        Args:
            weights: Ray's reference to what `LearnerActor.weights` returns: the tensors go from
                process to process, not through this one.
        """
        self._ask_all(actor.update_weights.remote(weights) for actor in self._actors)

    def load_weights(self, folder: Path) -> None:
        """Gives every engine the weights of a saved model of the same architecture."""
        folder = folder.resolve()
        with reading(folder):
            self._ask_all(actor.load_weights.remote(folder) for actor in self._actors)

    def _ask_all(self, pending: Iterator[Any]) -> list[Any]:
        started = [result.future() for result in pending]
        return [self._result(engine_name(i), result) for i, result in enumerate(started)]
