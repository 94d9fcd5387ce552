"""The loop with real Ray workers in mid-response: the env answers, an engine dies, weights come."""

import math
import random
import string
import threading
from typing import Any

import polars as pl
import pytest

from rl_core.config.run import RunConfig
from rl_core.data.sampling import Place, ProblemOrder
from rl_core.envs.countdown import CountdownConfig
from rl_core.envs.text_env import EnvTurn
from rl_core.workers.engines import Engines
from tests.rl_core.test_trainer import comparable, rollouts, settings, train_until
from tests.rl_core.workers.test_engines import kill_one
from tests.support.waiting import LIMIT_S


@pytest.mark.slow
def test_a_run_of_several_turns_loses_an_engine_as_if_undisturbed(
    tmp_path, tiny_model_path, monkeypatch
):
    """The env's words stand in the log as they were said, and no policy sampled them."""
    left = math.inf

    def reply(env: CountdownConfig, response: str, truth: dict[str, Any]) -> EnvTurn:
        nonlocal left
        left -= 1
        if left == 0:  # others' turns are under way, and this one's next about to begin
            kill_one(random.Random(3))
        return EnvTurn(f"<{truth['target']}>", reward=0.75)

    monkeypatch.setattr(CountdownConfig, "stop", tuple(string.ascii_letters))
    monkeypatch.setattr(CountdownConfig, "reply", reply)

    def config(run_id: str) -> RunConfig:
        base = settings(tmp_path, run_id, "hf").model_dump()
        more = {"env": base["env"] | {"max_turns": 3}}
        more["data"] = base["data"] | {"max_response_length": 60}
        # A response at a time: what it is computed with does not change with who computes it.
        more["rollout"] = base["rollout"] | {"num_engines": 2, "max_num_seqs": 1}
        return RunConfig.model_validate(base | more)

    whole = train_until(config("whole"), tiny_model_path)

    def strike(step: int) -> None:
        nonlocal left
        left = 3 if step == 0 else left

    struck = train_until(config("struck"), tiny_model_path, on_step=strike)
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
        own = row["response_tokens"] - sum(map(len, said))
        assert sum(run["tokens"] for run in row["policy_runs"]) == own
        earned = sum(turn["reward"] for turn in turns)
        assert row["score"] + earned <= 1.0 + 1e-6, "worth more than a correct answer"
        assert row["reward"] == pytest.approx(row["score"] + earned, abs=0.1)
        seen += len(said)
    assert seen > 8, "a run in which nobody was answered proves nothing"


def in_mid_response(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Has the first update come, at any speed, while a step that is `ahead` is being generated.

    That step's responses are asked for when the learner has the update, and the engines get it when
    the first of them has ended.
    """
    stream, set_weights = Engines.stream, Engines.set_weights
    at_update, has_ended = threading.Event(), threading.Event()
    asked: list[str] = []

    def held_stream(self: Engines, requests: Any, sampling: Any, phase: str = "gen") -> Any:
        asked.append(phase)
        is_it = phase == "gen" and asked.count("gen") == 1 + ahead
        assert not is_it or at_update.wait(LIMIT_S)
        for ended in stream(self, requests, sampling, phase):
            yield ended
            if is_it:
                has_ended.set()

    def held_set_weights(self: Engines, weights: Any, policy_version: int = 0) -> None:
        if policy_version == 1:
            at_update.set()
            assert has_ended.wait(LIMIT_S)
        set_weights(self, weights, policy_version)

    monkeypatch.setattr(Engines, "stream", held_stream)
    monkeypatch.setattr(Engines, "set_weights", held_set_weights)


@pytest.mark.slow
def test_weights_that_come_in_mid_response_make_no_token_staler_than_it_may_be(
    tmp_path, tiny_model_path, monkeypatch
):
    base = settings(tmp_path, "in_flight", "hf", staleness=2).model_dump()
    config = RunConfig.model_validate(
        base
        # As few at a time as there are: most of a step is yet to come when one has ended.
        | {"rollout": base["rollout"] | {"max_num_seqs": 1}}
        | {"data": base["data"] | {"max_response_length": 32, "train_batch_size": 8}}
        | {"trainer": base["trainer"] | {"total_steps": 5, "save_freq": 3, "test_freq": 3}}
    )
    in_mid_response(monkeypatch, ahead=2)
    train_until(config, tiny_model_path, stop_after=4)  # while more is being generated
    run = train_until(config, tiny_model_path)
    rows = run.metrics.read()
    assert [row["step"] for row in rows] == list(range(6))
    # Nothing is ahead of step 3's checkpoint, nor of the stop; step 2 was begun before any update,
    # and some of step 3 too.
    assert [row["rollout/staleness_max"] for row in rows[1:]] == [0, 1, 2, 0, 0]
    for row in rollouts(run).iter_rows(named=True):
        policies = [r["policy_version"] for r in row["policy_runs"]]
        assert policies == sorted(set(policies))
        assert sum(r["tokens"] for r in row["policy_runs"]) == row["response_tokens"]
        assert row["policy_version"] == policies[0] >= row["step"] - 3
        assert policies[-1] <= row["step"] - 1
    changed = rollouts(run).filter(pl.col("policy_runs").list.len() > 1)
    assert set(changed["step"]) == {3}, "no response of step 3 saw an update, or another's did"
    problems = rollouts(run).group_by("step").agg(pl.col("prompt_index")).sort("step")
    order = ProblemOrder(Place(config.seed, num_problems=10), batch_size=8)
    expected = [order.choose(step) for step in range(1, 6)]
    assert problems["prompt_index"].to_list() == expected
