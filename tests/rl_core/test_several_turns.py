"""The loop with real Ray workers and an env that answers, where an engine dies."""

import math
import random
import string
from typing import Any

import pytest

from rl_core.envs.countdown import Countdown
from rl_core.envs.text_env import EnvTurn
from tests.rl_core.test_trainer import comparable, rollouts, settings, train_until
from tests.rl_core.workers.test_engines import kill_one


@pytest.mark.slow
def test_a_run_of_several_turns_loses_an_engine_as_if_undisturbed(
    tmp_path, tiny_model_path, monkeypatch
):
    """The env's words stand in the log as they were said, and no policy sampled them."""
    left = math.inf

    def reply(env: Countdown, response: str, truth: dict[str, Any]) -> EnvTurn:
        nonlocal left
        left -= 1
        if left == 0:  # others' turns are under way, and this one's next about to begin
            kill_one(random.Random(3))
        return EnvTurn(f"<{truth['target']}>", reward=0.75)

    monkeypatch.setattr(Countdown, "stop", tuple(string.ascii_letters))
    monkeypatch.setattr(Countdown, "reply", reply)

    more = {
        "env": {"name": "countdown", "max_turns": 3},
        "data": {"max_response_length": 60},
        # A response at a time: what it is computed with does not change with who computes it.
        "rollout": {"num_engines": 2, "max_num_seqs": 1},
    }

    whole = train_until(settings(tmp_path, "whole", **more), tiny_model_path)

    def strike(step: int) -> None:
        nonlocal left
        left = 3 if step == 0 else left

    struck = train_until(settings(tmp_path, "struck", **more), tiny_model_path, on_step=strike)
    assert sum(struck.metrics.values("rollout/engine_restarts")) == 1
    assert comparable(struck) == comparable(whole)
    assert rollouts(struck).equals(rollouts(whole))
    assert max(row.get("rollout/logprob_gap_max", 0) for row in comparable(whole)) < 1e-4
    seen = 0
    for row in rollouts(whole).iter_rows(named=True):
        assert row["response_tokens"] <= 60
        turns = row["turns"] or []
        said = [turn["text"] for turn in turns if turn["author"] == "env"]
        assert said == [f"<{row['prompt_index'] + 10}>"] * len(said)
        assert "".join(turn["text"] for turn in turns) == (row["response"] if turns else "")
        own = [turn["tokens"] for turn in turns if turn["author"] == "model"]
        assert not turns or sum(own) == row["response_tokens"] - sum(map(len, said))
        earned = sum(turn["reward"] for turn in turns)
        assert row["score"] + earned <= 1.0 + 1e-6, "worth more than a correct answer"
        assert row["reward"] == pytest.approx(row["score"] + earned, abs=0.1)
        seen += len(said)
    assert seen > 8, "a run in which nobody was answered proves nothing"
