from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rl_core.rollout.collector import Collected
from rl_core.rollout.prefetch import Clock, RolloutsAhead


class Steps:
    """Collects nothing, under a switch, and remembers what was asked and timed."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.phases: list[str] = []
        self.may_go_on = threading.Event()

    def __call__(self, step: int, clock: Clock) -> Collected:
        self.asked.append(step)
        with clock("gen"):
            assert self.may_go_on.wait(10)
        if step == 13:
            raise ValueError("an engine died")
        return Collected([], {"step": step})

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        self.phases.append(phase)
        yield


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_on_demand_a_step_is_collected_by_the_policy_of_the_step_before(steps: Steps) -> None:
    steps.may_go_on.set()
    ahead = RolloutsAhead(steps)
    ahead.finish()
    for step in (1, 2):
        collected, policy_version = ahead.take(step, steps.clock)
        assert (collected.metrics["step"], policy_version) == (step, step - 1)
    assert (steps.asked, steps.phases) == ([1, 2], ["gen", "gen"])


def test_ahead_a_step_is_collected_once_while_others_work(steps: Steps) -> None:
    ahead = RolloutsAhead(steps)
    ahead.begin(5)
    steps.may_go_on.set()  # had `begin` waited, it would have given up before this
    ahead.finish()
    assert steps.phases == []
    collected, policy_version = ahead.take(5, steps.clock)
    assert (collected.metrics["step"], policy_version) == (5, 3)
    assert (steps.asked, steps.phases) == ([5], ["gen"])
    assert ahead.take(6, steps.clock)[1] == 5


def test_what_goes_wrong_ahead_is_raised_before_the_weights_change(steps: Steps) -> None:
    steps.may_go_on.set()
    ahead = RolloutsAhead(steps)
    ahead.begin(13)
    with pytest.raises(ValueError, match="an engine died"):
        ahead.finish()
