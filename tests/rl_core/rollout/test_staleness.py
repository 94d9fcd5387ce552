import pytest

from rl_core.rollout.staleness import staleness_metrics
from tests.rl_core.rollout.test_prefetch import rollout_of


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
