import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rl_core.rollout.collector import Collected
from rl_core.rollout.prefetch import Clock, RolloutsAhead, staleness_metrics, steps_ahead
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


def test_on_demand_a_step_is_collected_and_timed_by_who_asks(steps):
    steps.may_go_on.set()
    ahead = RolloutsAhead(steps)
    ahead.finish()
    for step in (1, 2):
        assert ahead.take(step, steps.clock).metrics["step"] == step
    assert (steps.asked, steps.phases) == ([1, 2], ["gen", "gen"])


def test_steps_ahead_are_collected_once_and_in_order_while_others_work(steps):
    ahead = RolloutsAhead(steps)
    ahead.begin([5, 6])
    ahead.begin([6, 7])
    steps.may_go_on.set()  # had `begin` waited, it would have given up before this
    ahead.finish()
    assert steps.phases == []
    for step in (5, 6, 7, 8):
        assert ahead.take(step, steps.clock).metrics["step"] == step
    assert steps.asked == [5, 6, 7, 8]
    assert steps.phases == ["gen"] * 4


def test_what_goes_wrong_ahead_is_raised_and_nothing_collected_after_it(steps):
    steps.may_go_on.set()
    ahead = RolloutsAhead(steps)
    ahead.begin([13, 14])
    with pytest.raises(ValueError, match="an engine died"):
        ahead.finish()
    with pytest.raises(ValueError, match="an engine died"):
        ahead.take(14, steps.clock)
    assert steps.asked == [13]


@pytest.mark.parametrize(
    ("step", "staleness", "expected"),
    [
        (1, 0, []),
        (1, 1, [2]),
        (4, 1, []),  # saved: what follows waits for it
        (1, 2, [2, 3]),
        (2, 2, [3, 4]),
        (3, 2, [4]),
        (1, 9, [2, 3, 4]),
        (9, 2, [10]),  # the last one
    ],
)
def test_steps_are_begun_as_far_as_they_may_be_stale_and_never_past_a_save(
    step, staleness, expected
):
    assert list(steps_ahead(step, staleness=staleness, save_freq=4, last_step=10)) == expected


def rollout_of(policies: list[int]) -> Rollout:
    """A response whose tokens are of these policies."""
    starts = [(i, p) for i, p in enumerate(policies) if i == 0 or policies[i - 1] != p]
    completion = Completion(
        np.zeros(len(policies), np.int64),
        np.zeros(len(policies), np.float32),
        "stop",
        tuple(starts),
    )
    problem = Problem(0, "countdown", (), {}, 0)
    return Rollout(problem, 0, 0, "", (1,), completion, "", ScoredText(0.0, "no_answer", None))


def test_staleness_counts_updates_by_tokens():
    # Step 6 learns with the policy of 5 updates.
    rollouts = [rollout_of([3, 3, 4, 5]), rollout_of([5]), rollout_of([4, 4, 4])]
    assert staleness_metrics(rollouts, 6, limit=2) == {
        "rollout/staleness_mean": (2 * 2 + 1 * 4 + 0 * 2) / 8,
        "rollout/staleness_max": 2,
        "rollout/stale_tokens_frac": 6 / 8,
    }
    assert rollouts[0].completion.policy_runs == [(3, 2), (4, 1), (5, 1)]


def test_an_on_policy_step_says_nothing_of_it():
    assert staleness_metrics([rollout_of([5, 5])], 6, limit=0) == {}
    assert staleness_metrics([rollout_of([5, 5])], 6, limit=1)["rollout/staleness_max"] == 0


@pytest.mark.parametrize(
    ("policies", "limit", "words"),
    [
        ([2, 2, 5], 2, r"step 6 would learn from 2 tokens of policy 2, 3 updates behind its own"),
        ([4], 0, r"1 updates behind its own: rollout.staleness=0 allows 0"),
        ([6], 2, r"policy 6, -1 updates behind"),
    ],
)
def test_a_token_that_is_staler_than_allowed_is_refused(policies, limit, words):
    with pytest.raises(RuntimeError, match=words):
        staleness_metrics([rollout_of(policies)], 6, limit=limit)


MILLISECONDS = st.lists(st.integers(0, 3), min_size=16, max_size=16)


@given(
    staleness=st.integers(0, 4),
    save_freq=st.integers(1, 9),
    token_ms=MILLISECONDS,
    learn_ms=MILLISECONDS,
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_however_long_things_take_no_token_is_staler_than_it_may_be(
    staleness, save_freq, token_ms, learn_ms
):
    """The loop's order of calls with a real thread, weights that change at any moment."""
    last_step, weights = 8, 0
    under_way: list[int] = []
    seen: dict[int, list[int]] = {}

    def collect(step: int, clock: Clock) -> Collected:
        under_way.append(step)
        policies = []
        for token in range(4):
            policies.append(weights)
            time.sleep(token_ms[(4 * step + token) % 16] / 1e3)
        under_way.remove(step)
        return Collected([rollout_of(policies)], {})

    ahead = RolloutsAhead(collect)
    for step in range(1, last_step + 1):
        collected = ahead.take(step, Steps().clock)
        ahead.begin(
            steps_ahead(step, staleness=staleness, save_freq=save_freq, last_step=last_step)
        )
        staleness_metrics(collected.rollouts, step, limit=staleness)  # raises where it must not be
        seen[step] = [p for p, n in collected.rollouts[0].completion.policy_runs for _ in range(n)]
        time.sleep(4 * learn_ms[step] / 1e3)
        if staleness < 2:
            ahead.finish()
        weights = step
        if step % save_freq == 0:
            assert not under_way
    if staleness < 2:  # and then timing changes nothing
        expected = {step: step - 1 - (staleness and (step - 1) % save_freq != 0) for step in seen}
        assert {step: set(policies) for step, policies in seen.items()} == {
            step: {policy} for step, policy in expected.items()
        }


def test_the_bound_is_reached_where_the_learner_is_slow():
    """Where all is collected as soon as it may be, tokens become as old as they may."""
    weights, ages = 0, []
    ahead = RolloutsAhead(lambda step, clock: Collected([rollout_of([weights])], {}))
    for step in range(1, 8):
        collected = ahead.take(step, Steps().clock)
        ahead.begin(steps_ahead(step, staleness=3, save_freq=100, last_step=7))
        ahead.finish()
        ages.append(staleness_metrics(collected.rollouts, step, limit=3)["rollout/staleness_max"])
        weights = step
    assert ages == [0, 1, 2, 3, 3, 3, 3]
