"""Scores the same texts again: is a reward the same twice, how long it takes, does it grow.

A part of `reward_probe.py`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import cycle, islice
from statistics import fmean, quantiles
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.rewards.scoring_process import Measured, ScoringProcess
from rl_core.system.words import counted, cut, disk_size
from rl_core.types import Problem
from tasks.preflight_checks import Finding, ok, warning

Call = tuple[str, Problem, Measured]
"""A response, its problem, and what it was worth."""
_CALLS: Final = 200
_CALLS_S: Final = 20.0
_SHOWN: Final = 80
_GROWTH_BYTES: Final = 8 * 2**20
"""What a process may grow by while it warms up."""


def repeat_findings(
    config: RunConfig, scorer: ScoringProcess, calls: Sequence[Call]
) -> Iterator[Finding]:
    """Scores the same texts again, in the same process and in a second one, and takes the time."""
    measured: list[Measured] = []
    changed: list[str] = []
    end = time.monotonic() + _CALLS_S
    for response, problem, first in islice(cycle(calls), _CALLS):
        measured.append(scorer.ask(response, problem))
        if measured[-1].scored != first.scored:
            changed.append(f"{cut(response, _SHOWN)!r}: {_change(first, measured[-1])}")
        if time.monotonic() > end:
            break
    with closing(ScoringProcess(config, hash_seed=2)) as second:
        for response, problem, first in calls:
            again = second.ask(response, problem)
            if again.scored != first.scored:
                changed.append(
                    f"{cut(response, _SHOWN)!r} in a second process: {_change(first, again)}"
                )
            if time.monotonic() > end + _CALLS_S:
                break
    yield (
        warning(
            "repeat",
            f"{len(changed)} texts scored otherwise when they were scored again, {changed[0]}",
            "random numbers, time, a set's order, or a judge decide",
        )
        if changed
        else ok("repeat", "every text scored the same again, and in a second process")
    )
    yield _time(config, [one.seconds for one in measured])
    yield _usage(config, measured)


def _change(first: Measured, again: Measured) -> str:
    return (
        f"{first.scored.verdict} {first.scored.score:g}, then {again.scored.verdict} "
        f"{again.scored.score:g}"
    )


def _time(config: RunConfig, seconds: Sequence[float]) -> Finding:
    slowest = quantiles(seconds, n=100, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    num_responses = config.data.train_batch_size * config.algorithm.group_size
    at_a_time = config.reward.workers if config.env.reward else 1
    step_s = fmean(seconds) * num_responses / at_a_time
    return ok(
        "time",
        f"{len(seconds)} calls, one at a time: {1e3 * fmean(seconds):.3g} ms on average, 99% "
        f"below {1e3 * slowest:.3g} ms; a step's {num_responses:,} responses take about "
        f"{max(step_s, 0.1):.2g} s with reward.workers={at_a_time} (less by an async def)",
    )


def _usage(config: RunConfig, measured: Sequence[Measured]) -> Finding:
    warm = measured[min(max(10, config.reward.workers), len(measured) - 1) :]
    threads = warm[-1].num_threads - warm[0].num_threads
    growth = warm[-1].num_bytes - warm[0].num_bytes
    text = (
        f"{counted(warm[0].num_threads, 'thread')} and {disk_size(warm[0].num_bytes)} after the "
        "first calls, "
        f"{warm[-1].num_threads} and {disk_size(warm[-1].num_bytes)} after {len(measured)}"
    )
    if threads > 0 or growth > _GROWTH_BYTES:
        return warning(
            "memory",
            text,
            "let the function start no thread that stays, and keep no response "
            f"(reward.memory_mib={config.reward.memory_mib})",
        )
    return ok("memory", text)
