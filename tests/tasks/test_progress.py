import logging

import pytest

from tasks.progress import TrainingProgress, describe, time_left

METRICS = {
    "reward/accuracy": 0.25,
    "critic/score/mean": 0.3251,
    "response_length/mean": 61.6,
    "critic/kl": 0.0123,
    "rollout/tokens_per_s": 3120.4,
}


def test_a_step_is_described_in_one_line():
    assert (
        describe(METRICS) == "accuracy 0.250 · score 0.325 · 62 tokens · KL 0.0123 · 3,120 tokens/s"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(89.4, "89 s"), (90, "2 min"), (5_399, "90 min"), (91_800, "25.5 h")]
)
def test_durations_are_said_as_people_say_them(seconds, text):
    assert time_left(seconds) == text


def test_tests_are_logged_with_step_and_time_left_but_not_every_step(caplog):
    caplog.set_level(logging.INFO)
    with TrainingProgress(logging.getLogger("progress"), as_artifact=False) as progress:
        progress.on_step(0, 4, {"val/accuracy": 0.5})
        progress.on_step(1, 4, METRICS)
        progress.on_step(2, 4, METRICS | {"val/accuracy": 0.625})
    assert [record.message.split(" · ")[:2] for record in caplog.records] == [
        ["step 0/4", "test 0.500"],
        ["step 2/4", "accuracy 0.250"],
    ]
    assert caplog.records[1].message.endswith(" left")
