"""One rollout engine's process, seen from the driver, and how work is handed to it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from rl_core.types import GenerationRequest, SamplingSettings

_PORTIONS: Final = 16
"""Calls in which an engine hands over its completions: each costs about a millisecond."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class EngineProcess:
    """One process; whoever takes its place is another."""

    name: str
    actor: Any
    """Ray's handle, whose calls run one after the other in the order in which they were made."""
    starting: list[Future[Any]] = field(default_factory=list)
    """Calls that load model and weights, until they are known to have ended well."""
    is_behind: bool = False
    """Others have got weights that it will be given when it has loaded: the last alone."""


def tell_when_loaded(loaded: Future[Any], words: str) -> None:
    """Says so in the log when an engine has loaded, if it ever does."""
    since = time.monotonic()

    def tell(loaded: Future[Any]) -> None:
        if loaded.exception() is None:
            _logger.warning("%s, in %.1f s", words, time.monotonic() - since)

    loaded.add_done_callback(tell)


def begin(
    actor: Any, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str
) -> list[Future[Any]]:
    """Asks for everything at once, so that an engine need not wait for us between two calls."""
    limit = -(-len(requests) // _PORTIONS) or 1
    calls = [actor.begin.remote(requests, sampling, phase)]
    calls += [actor.next_finished.remote(limit) for _ in range(0, len(requests), limit)]
    return [call.future() for call in calls]


def shares(positions: Sequence[int], number: int) -> list[Sequence[int]]:
    """Returns so many parts of about the same size, each of neighbours: they share prompts."""
    share, rest = divmod(len(positions), number)
    ends = itertools.accumulate(share + (i < rest) for i in range(number))
    return [positions[start:end] for start, end in itertools.pairwise((0, *ends))]
