"""Ray and the engines of an attempt whose learner failed: the next attempt uses them again.

- They stay if the learner ran out of memory or died, and if they have started in this attempt or it
  has done a step: else what is wrong may be theirs. Engines on the learner's card go: they load
  after the learner, into what it leaves. In a cluster they go, too: with the learner its machine
  may be gone, and with that a part of the room.
- The next attempt starts new ones if it changes a setting that an engine reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.resources.levers import HELPS, value_of, with_unchecked
from rl_core.resources.placement import LEARNER, shares_a_card

_OF_THE_LEARNER: Final = (
    "actor.micro_batch_tokens",
    "checkpoints.in_background",
    "model.gradient_checkpointing",
    "resources.learner_threads",
    "resources.offload",
)
"""Settings that a retry may change and that no engine reads."""


class _Workers(Protocol):
    """A learner and its engines."""

    has_learned: bool

    def end_learner(self) -> None:
        """Ends the learner only."""


_W = TypeVar("_W", bound=_Workers)


class KeptEngines(Generic[_W]):
    """Holds Ray and the engines between two attempts; `keeps`: another attempt may come."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.held = ExitStack()
        """Ends Ray and the engines when it is closed."""
        self.workers: _W | None = None
        """Of the attempt that has started, or of the one before, whose learner is gone."""
        self._keeps = keeps
        self._of: tuple[RunConfig, Path] | None = None

    @contextmanager
    def attempt(self, config: RunConfig, model_path: Path) -> Iterator[_W | None]:
        """Yields the workers of the attempt before, if they fit; when left, ends or keeps what is.

        In the block `workers` is set when all have started.
        """
        if self._of is None or model_path != self._of[1] or not _read_alike(self._of[0], config):
            self.close()
        self._of = config, model_path
        before = self.workers
        self.workers = None
        stay = False
        try:
            yield before
        except (OutOfMemory, WorkerDied) as error:
            stays_here = config.resources.ray_address is None and not shares_a_card(config)
            stay = self._keeps and stays_here and _is_of_learner(error)
            raise
        finally:
            if stay and self.workers is not None and (before is None or self.workers.has_learned):
                self.workers.end_learner()
            else:
                self.close()

    def close(self) -> None:
        """Ends what is kept."""
        self.workers = None
        self.held.close()


def _read_alike(before: RunConfig, now: RunConfig) -> bool:
    """Returns whether an engine of `before` is one of `now`."""
    return with_unchecked(before, {name: value_of(now, name) for name in _OF_THE_LEARNER}) == now


def _is_of_learner(error: OutOfMemory | WorkerDied) -> bool:
    place = error.phase if isinstance(error, OutOfMemory) else error.worker
    return place.startswith(LEARNER) or HELPS.get(place, ("engine", ()))[0] != "engine"
