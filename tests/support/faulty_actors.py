"""An engine's process into which a fault can be put, for tests with a real Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rl_core.errors import WeightsLost
from rl_core.types import Completion
from rl_core.workers.actors import RolloutActor


class FaultyRolloutActor(RolloutActor):
    """A rollout engine's process that runs out of memory, or dies, when it is told to."""

    def fail_at(self, calls: Collection[int]) -> None:
        """From now on the n-th pass fails, for n in `calls`."""
        from tests.support.memory_faults import engine_out_of_memory

        self._fault = engine_out_of_memory(calls)
        self._fault.__enter__()  # until the process ends

    def lose_weights(self, folder: Path) -> None:
        """Its next answers end as where vLLM is built again, from its folder, after a broadcast."""
        generate = self._engine.generate

        def say_so(*args: Any) -> Iterator[tuple[int, Completion]]:
            self._engine.generate = generate  # type: ignore[method-assign]
            yield from islice(generate(*args), 1)
            self.set_weights(folder)
            raise WeightsLost("vLLM was built again")

        self._engine.generate = say_so  # type: ignore[method-assign]

    def die_in_broadcast(self) -> None:
        """It dies when it has received a tensor of the next one."""
        from rl_core.models.weight_channel import WeightChannel

        receive = WeightChannel.broadcast

        def and_die(channel: Any, tensor: Any) -> None:
            receive(channel, tensor)
            os.kill(os.getpid(), signal.SIGKILL)

        WeightChannel.broadcast = and_die  # type: ignore[method-assign]
