"""An engine's process into which a fault can be put, and what its driver says of that."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection

from rl_core.workers.actors import RolloutActor


class Heard(logging.Handler):
    """What the engines' driver says, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[float, str]] = []
        logging.getLogger("rl_core.workers").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((time.monotonic(), record.getMessage()))

    def times(self, words: str) -> list[float]:
        return [time for time, line in self.lines if words in line]


class FaultyRolloutActor(RolloutActor):
    """A rollout engine's process that runs out of memory, or dies, when it is told to."""

    def fail_at(self, calls: Collection[int]) -> None:
        """From now on the n-th pass fails, for n in `calls`."""
        from tests.support.memory_faults import engine_out_of_memory

        self._fault = engine_out_of_memory(calls)
        self._fault.__enter__()  # until the process ends

    def die_at_weights(self) -> None:
        """It dies when the next weights come, before it has taken them."""

        def die(weights: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        self._engine.engine.update_weights = die  # type: ignore[method-assign]
