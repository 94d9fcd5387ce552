"""An engine's process into which a fault can be put, for tests with a real Ray."""

import os
import signal
from collections.abc import Collection

from rl_core.workers.actors import RolloutActor


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
