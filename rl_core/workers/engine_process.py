"""One process of a rollout engine, and what is under way in it (stage 3)."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from rl_core.types import GenerationRequest, SamplingSettings

_PORTIONS: Final = 16
"""Calls in which an engine hands over its completions: each costs about a millisecond."""


@dataclass(eq=False)
class EngineProcess:
    """One process of an engine; a restart makes a new one."""

    name: str
    actor: Any
    """Ray's handle, whose calls run one after the other in the order in which they were made."""
    starting: list[Future[Any]] = field(default_factory=list)
    """Calls that load model and weights, until their success is known."""
    is_behind: bool = False
    """Others have newer weights, which it gets when it has loaded."""
    moved_at: float = field(default_factory=time.monotonic)
    """When it was asked, or last answered."""

    def is_starting(self) -> bool:
        """Returns whether it still loads."""
        return not all(call.done() for call in self.starting)


@dataclass(eq=False)
class Job:
    """What is under way in one stream."""

    requests: Sequence[GenerationRequest]
    sampling: SamplingSettings
    phase: str
    unanswered: dict[int, EngineProcess] = field(default_factory=dict)
    """By a request's position, the engine that has it."""
    calls: dict[Future[Any], tuple[EngineProcess, Sequence[int]]] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    """By a request's position, the hung engines that it was taken from."""

    def held_by(self, engine: EngineProcess) -> list[int]:
        """Returns the positions of an engine's unanswered requests."""
        return [position for position, holder in self.unanswered.items() if holder is engine]

    def silent(self) -> set[EngineProcess]:
        """Returns the engines with calls of which none is done."""
        moving = {engine for call, (engine, _) in self.calls.items() if call.done()}
        return {engine for engine, _ in self.calls.values()} - moving


def begin(
    actor: Any, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str
) -> list[Future[Any]]:
    """Makes all calls at once, so that the engine need not wait for the driver between them."""
    limit = -(-len(requests) // _PORTIONS) or 1
    calls = [actor.begin.remote(requests, sampling, phase)]
    calls += [actor.next_finished.remote(limit) for _ in range(0, len(requests), limit)]
    return [call.future() for call in calls]


def shares(positions: Sequence[int], number: int) -> list[Sequence[int]]:
    """Returns `number` parts of about equal size, each of neighbours, which share prompts."""
    share, rest = divmod(len(positions), number)
    ends = itertools.accumulate(share + (i < rest) for i in range(number))
    return [positions[start:end] for start, end in itertools.pairwise((0, *ends))]
