"""Engines that live and are silent: each is named, ended, and its responses are the others'."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from rl_core.rollout.protocol import in_order
from rl_core.runs.waiting import waits_in_words
from rl_core.system.waits import OF_TRAINING, Waits
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from rl_core.workers import cluster as workers_module
from rl_core.workers import engines as engines_module
from rl_core.workers.cluster import Workers
from tests.support.faulty_actors import FaultyRolloutActor, Heard
from tests.support.runs import run_config
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SAMPLED = SamplingSettings(max_tokens=8, temperature=1.0)
REQUESTS = [GenerationRequest((5 + i % 16, 6, 7), seed=i, problem=i) for i in range(64)]
NOTICED_S = 10.0
POISON = 50


@pytest.fixture
def workers(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setattr(workers_module, "RolloutActor", FaultyRolloutActor)
    config = run_config(
        data={"max_prompt_length": 64, "max_response_length": 64},
        rollout={"engine": "hf", "num_engines": 2, "max_num_seqs": 64},
    )
    waits = Waits(tmp_path / OF_TRAINING)
    with (
        waits.written(),
        Workers.start(config, tiny_model_path, learner=False, waits=waits) as started,
    ):
        assert waits.startup_s.keys() == {"Ray", "engine_0", "engine_1"}
        yield started


def tokens(answers: list[Completion]) -> list[list[int]]:
    return [answer.response_ids.tolist() for answer in answers]


class Streamed(threading.Thread):
    """Responses asked for in a thread, as while the learner works."""

    def __init__(self, workers: Workers) -> None:
        super().__init__(daemon=True)
        self._workers = workers
        self.answers: list[tuple[int, Completion]] = []
        self.start()

    def run(self) -> None:
        with suppress(RuntimeError):  # the session ends first
            for answer in self._workers.engines.stream(REQUESTS, SAMPLED):
                self.answers.append(answer)

    def tokens(self) -> list[list[int]]:
        self.join()
        return tokens(in_order(self.answers))


def test_a_hung_engine_is_named_and_its_responses_are_the_same(
    workers, tmp_path, monkeypatch, survived
):
    heard, engines = Heard(), workers.engines
    calm = tokens(in_order(engines.stream(REQUESTS, SAMPLED)))
    assert "rollout/engine_hangs" not in engines.end_step()
    monkeypatch.setattr(engines_module, "_LEAST_S", NOTICED_S + 2)

    def named(*words: str) -> bool:
        return any(all(word in line for word in words) for line in waits_in_words(tmp_path))

    def check_replaced() -> None:
        metrics = engines.end_step()
        assert metrics["rollout/engine_restarts"] == metrics["rollout/engine_hangs"] == 1
        wait_for(lambda: len(heard.times("has started again, in")) == restarts)

    ray.get(engines.actors["engine_1"].never_answer.remote(POISON))
    restarts = 1
    streamed = Streamed(workers)
    wait_for(lambda: len(streamed.answers) >= 60)
    wait_for(lambda: named("gen for", "of 64 answered", f"problem {POISON}, engine_1"), NOTICED_S)
    assert streamed.tokens() == calm
    check_replaced()

    engines.actors["engine_0"].stop.remote()  # before it is asked
    restarts = 2
    streamed = Streamed(workers)
    wait_for(lambda: len(streamed.answers) >= 32)
    wait_for(lambda: named("gen for", "32 of 64 answered", "problem 0, engine_0"), NOTICED_S)
    assert streamed.tokens() == calm
    check_replaced()

    engines.actors["engine_1"].stop.remote()  # while it is idle
    restarts = 3
    threading.Thread(target=engines.end_step, daemon=True).start()
    wait_for(lambda: named("sync for", "end_step, engine_1"), NOTICED_S)
    wait_for(lambda: len(heard.times("has started again, in")) == restarts)
    survived("hang", "an engine: one response, all of it, idle")


def test_a_request_that_hangs_every_engine_is_left_to_the_watchdog(
    workers, monkeypatch, tiny_model_path
):
    class Poisoned(FaultyRolloutActor):
        def load(self, *arguments: object) -> tuple[int, str]:
            held = super().load(*arguments)
            self.never_answer(POISON)
            return held

    monkeypatch.setattr(workers_module, "RolloutActor", Poisoned)
    monkeypatch.setattr(engines_module, "_LEAST_S", 8.0)
    monkeypatch.setattr(engines_module, "_PATIENCE", 0.0)
    heard, engines = Heard(), workers.engines
    in_order(engines.stream(REQUESTS, SAMPLED))  # how long one takes is known
    for actor in engines.actors.values():
        ray.get(actor.never_answer.remote(POISON))
    streamed = Streamed(workers)
    wait_for(lambda: len(heard.times("it counts as dead")) == 2)
    wait_for(lambda: len(streamed.answers) >= len(REQUESTS) - 4)
    time.sleep(11.0)
    assert len(heard.times("it counts as dead")) == 2
    assert streamed.is_alive()
