"""A job of a watched process that keeps something for its next attempt."""

import os
from dataclasses import dataclass
from pathlib import Path

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.workers.kept import KeptEngines
from tasks.supervision.child import Reporter


@dataclass
class NoWorkers:
    has_learned: bool = True

    def end_learner(self) -> None:
        """There is none."""


def fails_once(reporter: Reporter) -> int:
    """Returns this process's number, in its second attempt; the first error has the number too."""
    kept = KeptEngines[NoWorkers](keeps=True) if reporter.kept is None else reporter.kept
    reporter.kept = kept  # type: ignore[assignment]  # they are no Workers
    with kept.attempt(RunConfig(), Path("model")) as before:
        kept.workers = NoWorkers()  # type: ignore[assignment]
        if before is None:
            raise OutOfMemory("update_actor", str(os.getpid()))
    return os.getpid()
