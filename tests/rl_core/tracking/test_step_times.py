import pytest

from rl_core.tracking.observers import per_token_ms


def test_times_per_token_by_hand(make_rollout):
    rollouts = [make_rollout([1, 2, 3], [4]), make_rollout([1], [2, 3, 4])]
    seconds = {"timing_s/gen": 0.4, "timing_s/update_actor": 0.8, "timing_s/step": 9.0}
    assert per_token_ms(seconds, rollouts) == pytest.approx(
        {"timing_per_token_ms/gen": 100.0, "timing_per_token_ms/update_actor": 100.0}
    )
