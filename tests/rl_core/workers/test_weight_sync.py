"""Weights sent to all engines at once: real Ray, real gloo, engines that are killed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from rl_core.config.run import RunConfig
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.types import GenerationRequest, Rollout, SamplingSettings
from rl_core.workers import cluster as workers_module
from rl_core.workers.cluster import Workers
from tests.support.chaos import Ledger
from tests.support.faulty_actors import FaultyRolloutActor
from tests.support.waiting import wait_for

GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 3 * i)), seed=i) for i in range(4)]


class Session:
    """Workers that broadcast, and what the engines must answer."""

    def __init__(self, workers: Workers, rollouts: list[Rollout], folder: Path) -> None:
        self.workers, self._rollouts, self._folder = workers, rollouts, folder
        self.step = 0
        self._last: list[list[int]] = []

    def learn_and_sync(self) -> None:
        self.step += 1
        self.workers.learn(self._rollouts, self.step)
        self.workers.sync_weights()
        folder = self._folder / str(self.step)
        self.workers.snapshot()
        self.workers.write_snapshot(folder, model_alone=True)
        engine = HfEngine(folder, dtype="float32", max_num_seqs=8, on_gpu=False)
        answers = in_order(engine.generate(REQUESTS, GREEDY))
        expected = [answer.response_ids.tolist() for answer in answers]
        assert expected != self._last, "weights that change no response would prove nothing"
        self._last = expected

    def check_answers(self) -> None:
        answers = in_order(self.workers.engines.stream(REQUESTS, GREEDY))
        assert [answer.response_ids.tolist() for answer in answers] == self._last

    def receivers(self) -> set[str]:
        """Engines that were in the last broadcast."""
        assert self.workers.broadcast is not None
        return set(self.workers.broadcast.met)

    def kill(self, name: str) -> None:
        ray.kill(self.workers.engines.actors[name])


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_broadcast_reaches_all_engines_and_outlives_each_of_them(
    tiny_model_path: Path,
    tmp_path: Path,
    settings: Callable[..., RunConfig],
    random_rollouts: Callable[..., list[Rollout]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    survived: Ledger,
) -> None:
    monkeypatch.setattr(workers_module, "RolloutActor", FaultyRolloutActor)
    caplog.set_level(logging.WARNING, "rl_core.workers")
    config = settings(
        data={"max_prompt_length": 64, "max_response_length": 64},
        actor={"lr": 1e-2},
        rollout={"engine": "hf", "num_engines": 2, "weight_sync": "broadcast"},
        resources={"learner_threads": 1, "learner_ranks": 2},
    )

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    with Workers.start(config, tiny_model_path, log_folder=tmp_path / "logs") as workers:
        session = Session(workers, random_rollouts(8), tmp_path)
        for _ in range(2):
            session.learn_and_sync()
            session.check_answers()
            assert session.receivers() == {"engine_0", "engine_1"}

        ray.get(workers.engines.actors["engine_1"].lose_weights.remote(tiny_model_path))
        session.check_answers()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 0

        session.kill("engine_0")  # while idle: found when weights come
        session.learn_and_sync()
        session.check_answers()
        assert said("go through Ray's object store") == 1
        wait_for(lambda: said("has started again, in") == 1)
        session.check_answers()  # also by the new one
        workers.engines.end_step()

        faulty = workers.engines.actors["engine_1"]
        ray.get(faulty.die_in_broadcast.remote())
        session.learn_and_sync()
        session.check_answers()
        assert said("go through Ray's object store") == 2
        wait_for(lambda: said("has started again, in") == 2)
        workers.engines.end_step()

        session.learn_and_sync()  # among those that are there now
        assert session.receivers() == {"engine_0", "engine_1"}
        session.check_answers()
        for name in ("engine_0", "engine_1"):  # nobody has the weights but the learner
            session.kill(name)
        session.check_answers()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 2
    survived("SIGKILL", "an engine in a broadcast of weights, idle, all at once")
