"""The loop with real Ray workers where the env answers: stopped and resumed as if undisturbed."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.envs import ENVS
from rl_core.envs.countdown import CountdownConfig
from rl_core.envs.record import Answers, EnvTurn
from tests.rl_core.test_trainer import comparable, rollouts, settings, train_until


@pytest.mark.slow
def test_a_run_of_several_turns_resumes_as_if_undisturbed(
    tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The env's words stand in the log as they were said, and no policy sampled them."""

    def answer(env: CountdownConfig, truth: dict[str, Any], response: str) -> EnvTurn:
        return EnvTurn(f"<{truth['target']}>", reward=0.25)

    answering = replace(
        ENVS["countdown"], answers=Answers(stop=tuple(string.ascii_letters), answer=answer)
    )
    monkeypatch.setitem(ENVS, "countdown", answering)

    def config(run_id: str) -> RunConfig:
        base = settings(tmp_path, run_id, "hf").model_dump()
        more = {"env": base["env"] | {"max_turns": 3}}
        more["data"] = base["data"] | {"max_response_length": 60}
        return RunConfig.model_validate(base | more)

    whole = train_until(config("whole"), tiny_model_path)
    train_until(config("halves"), tiny_model_path, stop_after=3)
    resumed = train_until(config("halves"), tiny_model_path)
    assert comparable(resumed) == comparable(whole)
    assert rollouts(resumed).equals(rollouts(whole))
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
        assert row["reward"] == pytest.approx(row["score"] + earned, abs=0.1)
        seen += len(said)
    assert seen > 8, "a run in which nobody was answered proves nothing"
