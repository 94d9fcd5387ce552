"""Engines that are killed: the responses stay what they would have been."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file

from rl_core.config.run import RunConfig
from rl_core.errors import WorkerDied
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from rl_core.workers.cluster import Workers
from tests.conftest import build_tiny_model
from tests.rl_core.test_trainer import comparable, rollouts, settings, train_until
from tests.support.faulty_actors import Heard
from tests.support.learners import assert_close
from tests.support.programs import command_lines
from tests.support.runs import run_config
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

SAMPLED = SamplingSettings(max_tokens=48, temperature=1.0)
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 3 * i)), seed=i) for i in range(12)]
NOTICED_WITHIN_S = 10.0


def with_engines(number: int, engine: str) -> RunConfig:
    return run_config(
        data={"max_prompt_length": 64, "max_response_length": 64},
        # Few at a time, so that a kill finds some that have not begun.
        rollout={"engine": engine, "num_engines": number, "kv_cache_mib": 16, "max_num_seqs": 2},
    )


def engine_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [p for p, line in command_lines(children).items() if "RolloutActor" in line]


def kill_one(chance: random.Random) -> None:
    """Kills one of the two oldest: none that has not come through a step."""
    oldest = sorted(engine_processes(), key=lambda process: process.create_time())[:2]
    chance.choice(oldest).kill()


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    yield handler
    logging.getLogger("rl_core.workers").removeHandler(handler)


def answers_of(folder: Path) -> list[Completion]:
    engine = HfEngine(folder, dtype="float32", max_num_seqs=8, on_gpu=False)
    return in_order(engine.generate(REQUESTS, SAMPLED))


def check_same(got: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.chaos
def test_whenever_an_engine_is_killed_the_responses_are_those_of_the_weights_given_last(
    tiny_model_path, tmp_path, heard, survived
):
    chance = random.Random(3)
    build_tiny_model(tmp_path / "other", seed=1)
    with Workers.start(with_engines(2, "vllm"), tiny_model_path, learner=False) as workers:
        engines = workers.engines
        calm = in_order(engines.stream(REQUESTS, SAMPLED))
        assert engines.end_step()["rollout/engine_restarts"] == 0

        answered = []
        for answer in engines.stream(REQUESTS, SAMPLED):  # killed in mid-step
            if not answered:
                killed = time.monotonic()
                kill_one(chance)
            answered.append(answer)
        (noticed,) = heard.times("its process is gone")
        assert noticed - killed < NOTICED_WITHIN_S
        assert sorted(position for position, _ in answered) == list(range(len(REQUESTS)))
        check_same(in_order(answered), calm)
        assert engines.end_step()["rollout/engine_restarts"] == 1
        wait_for(lambda: len(heard.times("has started again, in")) == 1)
        check_same(in_order(engines.stream(REQUESTS, SAMPLED)), calm)
        engines.end_step()

        engines.release_weights()
        kill_one(chance)  # while idle, when nobody has the old weights any more, nor the new ones
        engines.load_weights(tmp_path / "other")
        other = in_order(engines.stream(REQUESTS, SAMPLED))
        wait_for(lambda: len(heard.times("has started again, in")) == 2)
        both = in_order(engines.stream(REQUESTS, SAMPLED))  # also from the new one
        check_same(both, other)
        assert [c.response_ids.tolist() for c in other] != [c.response_ids.tolist() for c in calm]
        assert engines.end_step()["rollout/engine_restarts"] == 1
    survived("SIGKILL", "vllm engine in mid-step, idle")


@contextmanager
def killing_those_that_start(number: int) -> Iterator[None]:
    """Kills so many engines as soon as they are there: none has loaded by then."""
    killed: set[int] = set()
    done = threading.Event()

    def kill() -> None:
        while len(killed) < number and not done.wait(0.05):
            for process in engine_processes():
                killed.add(process.pid)
                process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        done.set()
        killer.join()


def test_an_engine_killed_while_it_loads_loads_again(tiny_model_path):
    with (
        killing_those_that_start(1),
        Workers.start(with_engines(1, "hf"), tiny_model_path, learner=False) as workers,
    ):
        check_same(in_order(workers.engines.stream(REQUESTS, SAMPLED)), answers_of(tiny_model_path))
        assert workers.engines.end_step()["rollout/engine_restarts"] == 1
    with pytest.raises(RuntimeError, match="the run has ended"):
        list(workers.engines.stream(REQUESTS, SAMPLED))


def test_an_engine_that_dies_again_and_again_ends_the_attempt(tiny_model_path):
    words = r"engine_0 died: 3 times without coming through a step; its process is gone \(killed"
    with (
        killing_those_that_start(3),
        pytest.raises(WorkerDied, match=words),
        Workers.start(with_engines(1, "hf"), tiny_model_path, learner=False),
    ):
        pass


STEPS, KILLS, ENGINES = 6, 2, 2
LONG_RUN = {
    "rollout": {"num_engines": ENGINES, "max_num_seqs": 1},
    "data": {"max_response_length": 32},
    "trainer": {"total_steps": STEPS, "save_freq": STEPS, "test_freq": STEPS},
}


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_engines_killed_at_any_moment_of_a_step_change_nothing(
    tmp_path, tiny_model_path, heard, survived
):
    calm = train_until(settings(tmp_path, "calm", **LONG_RUN), tiny_model_path)
    step_s = float(np.median(calm.metrics.values("timing_s/step")))
    chance, kills = random.Random(7), 0

    def strike(step: int) -> None:
        """Strikes the next step, at any moment of it, if the last death was noticed."""
        nonlocal kills
        if kills < KILLS and len(heard.times("its process is gone")) == kills:
            wait_for(lambda: len(heard.times("has started again, in")) == kills)
            kills += 1
            threading.Timer(chance.uniform(0, step_s), kill_one, [chance]).start()

    config = settings(tmp_path, "struck", **LONG_RUN)
    struck = train_until(config, tiny_model_path, on_step=strike)
    restarts = struck.metrics.values("rollout/engine_restarts")
    assert kills == KILLS
    assert sum(restarts) == KILLS
    assert len(comparable(struck)) == STEPS + 1
    for got, expected in zip(comparable(struck), comparable(calm), strict=True):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-7)
    same = ["step", "group_id", "sample_index", "response", "score", "response_tokens"]
    assert rollouts(struck).select(same).equals(rollouts(calm).select(same))
    weights, expected = (
        load_file(run.path / "checkpoints/latest/model.safetensors") for run in (struck, calm)
    )
    assert_close(weights, expected, atol=1e-6)
    survived("SIGKILL", f"one of {ENGINES} engines, {KILLS} times in {STEPS} steps")
