"""An engine's process into which a fault can be put, and what its driver says of that."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rl_core.types import GenerationRequest
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
    """A rollout engine's process that a test can kill, stop and have hang."""

    def stop(self) -> None:
        """It gets SIGSTOP."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def never_answer(self, seed: int) -> None:
        """It answers all requests but the one with this seed, for which it takes for ever."""
        generate = self._engine.generate

        def stuck(requests: Sequence[GenerationRequest], *how: Any) -> Iterator[Any]:
            ends = sorted(generate(requests, *how))
            yield from (end for end in ends if requests[end[0]].seed != seed)
            if seed in {request.seed for request in requests}:
                time.sleep(10_000)

        self._engine.generate = stuck  # type: ignore[method-assign]

    def die_at_weights(self) -> None:
        """It dies when the next weights come, before it has taken them."""

        def die(weights: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        self._engine.engine.update_weights = die  # type: ignore[method-assign]
