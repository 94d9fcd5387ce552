import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rl_core.rollout.collector import Collected
from rl_core.rollout.prefetch import Clock, RolloutsAhead, staleness_metrics
from rl_core.types import Completion, Problem, Rollout, ScoredText


class Steps:
    """Collects nothing, under a switch, and remembers what was asked and timed."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.phases: list[str] = []
        self.may_go_on = threading.Event()

    def __call__(self, step: int, clock: Clock) -> Collected:
        self.asked.append(step)
        with clock("gen"):
            assert self.may_go_on.wait(300)
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


def test_a_step_ahead_is_collected_while_others_work_and_any_other_when_it_is_asked_for(steps):
    ahead = RolloutsAhead(steps)
    ahead.finish()  # nothing is under way
    ahead.begin(5)
    assert ahead.is_collecting()
    steps.may_go_on.set()  # had `begin` waited, it would have given up before this
    ahead.finish()
    assert not ahead.is_collecting()
    assert steps.phases == []
    for step in (5, 6):
        assert ahead.take(step, steps.clock).metrics["step"] == step
    assert steps.asked == [5, 6]
    assert steps.phases == ["gen"] * 2


def test_what_goes_wrong_ahead_is_raised(steps):
    steps.may_go_on.set()
    ahead = RolloutsAhead(steps)
    ahead.begin(13)
    with pytest.raises(ValueError, match="an engine died"):
        ahead.finish()
    with pytest.raises(ValueError, match="an engine died"):
        ahead.take(13, steps.clock)


def rollout_of(policy: int, num_tokens: int) -> Rollout:
    completion = Completion(
        np.zeros(num_tokens, np.int64), np.zeros(num_tokens, np.float32), "stop", policy
    )
    problem = Problem(0, "countdown", (), {}, 0)
    return Rollout(problem, 0, 0, "", (1,), completion, "", ScoredText(0.0, "no_answer", None))


def test_staleness_counts_updates_by_tokens():
    # Step 6 learns with the policy of 5 updates.
    rollouts = [rollout_of(4, 4), rollout_of(5, 1), rollout_of(4, 3)]
    assert staleness_metrics(rollouts, 6, limit=1) == {
        "rollout/staleness_mean": 7 / 8,
        "rollout/staleness_max": 1,
        "rollout/stale_tokens_frac": 7 / 8,
    }
    assert staleness_metrics([rollout_of(5, 2)], 6, limit=1)["rollout/staleness_max"] == 0
    assert staleness_metrics([rollout_of(5, 2)], 6, limit=0) == {}


@pytest.mark.parametrize(
    ("policy", "limit", "words"),
    [
        (3, 1, r"step 6 would learn from 2 tokens of policy 3, 2 updates behind its own"),
        (4, 0, r"1 updates behind its own: rollout.staleness=0 allows 0"),
        (6, 1, r"policy 6, -1 updates behind"),
    ],
)
def test_a_token_that_is_staler_than_allowed_is_refused(policy, limit, words):
    with pytest.raises(RuntimeError, match=words):
        staleness_metrics([rollout_of(policy, 2)], 6, limit=limit)
