"""Engines that live on when only the learner fails, on real Ray; they would else start anew."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import ray

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, RankLost, WorkerDied
from rl_core.resources.levers import HELPS, with_unchecked
from rl_core.resources.oom_recovery import recovery_steps_left
from rl_core.rollout.protocol import in_order
from rl_core.system.waits import Waits
from rl_core.types import GenerationRequest, SamplingSettings
from rl_core.workers.cluster import Workers
from rl_core.workers.kept import KeptEngines, _is_of_learner, _read_alike
from tests.rl_core.workers.test_elastic_engines import GREEDY, REQUESTS, SECTIONS, Session


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemory("update_actor", ""), True),
        (OutOfMemory("load_learner", ""), True),
        (OutOfMemory("weights", ""), True),
        (OutOfMemory("learner", "killed"), True),
        (WorkerDied("learner", ""), True),
        (RankLost("learner_1", ""), True),
        (OutOfMemory("gen", ""), False),
        (OutOfMemory("sync", ""), False),
        (OutOfMemory("engine_0", "killed"), False),
        (WorkerDied("engine_0", ""), False),
        (WorkerDied("Ray", ""), False),
    ],
)
def test_only_an_error_of_the_learner_leaves_the_engines(error, expected):
    assert _is_of_learner(error) == expected


def test_what_a_retry_changes_in_an_engine_needs_a_new_one():
    """By all steps of all ladders: an engine may stay only if none of its settings moves."""
    config = RunConfig.model_validate({"rollout": {"engine": "hf", "num_engines": 2}})
    moved = {}
    for phase in HELPS:
        for changes in recovery_steps_left(config, OutOfMemory(phase, ""), None):
            new = with_unchecked(config, {name: value for name, (_, value) in changes.items()})
            moved |= dict.fromkeys(changes, _read_alike(config, new))
    assert moved == {
        "model.gradient_checkpointing": True,
        "resources.learner_threads": True,
        "checkpoints.in_background": True,
        "rollout.max_num_seqs": False,
        "rollout.num_engines": False,
    }


def pids(workers: Workers) -> list[int]:
    calls = [x.__ray_call__.remote(lambda _: os.getpid()) for x in workers.engines.actors.values()]
    return list(map(int, ray.get(calls)))


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


class Attempts:
    """Attempts at a training whose engines are kept."""

    def __init__(self, model_path: Path, folder: Path) -> None:
        self.kept = KeptEngines[Workers](keeps=True)
        self._model_path = model_path
        self._folder = folder

    def fail(
        self, config: RunConfig, step: int, act: Callable[[Workers, Waits], RuntimeError | None]
    ) -> None:
        """Starts after a step, calls `act`, and fails as it returns or raises."""
        waits = Waits()
        with (
            suppress(OutOfMemory, WorkerDied),
            Workers.start(
                config,
                self._model_path,
                resume_from=self._folder / str(step) if step else None,
                policy_version=step,
                log_folder=self._folder / "logs",
                waits=waits,
                kept=self.kept,
            ) as workers,
        ):
            if (error := act(workers, waits)) is not None:
                raise error


@pytest.mark.slow
@pytest.mark.chaos
def test_engines_outlive_the_learner_and_have_the_weights_of_the_next_one(
    tiny_model_path, tmp_path, settings, random_rollouts, survived
):
    sections = SECTIONS | {"rollout": {"engine": "vllm", "num_engines": 2, "kv_cache_mib": 16}}
    config = settings(**sections, resources={"learner_threads": 2})
    attempts, rollouts = Attempts(tiny_model_path, tmp_path), random_rollouts(8)
    many = [GenerationRequest(one.prompt_ids, seed) for seed in range(99) for one in REQUESTS]
    sessions, first, streams = [], [], []

    def lose_learner(workers: Workers, waits: Waits) -> None:
        sessions.append(Session(workers, rollouts, tmp_path))
        sessions[0].learn_and_sync()
        first.extend(pids(workers))
        streams.append(threading.Thread(target=drain, args=(workers, many)))
        streams[0].start()
        ray.kill(workers.ranks["learner"])
        with pytest.raises(WorkerDied, match="learner died") as died:
            workers.learn(rollouts, 2)
        raise died.value

    def go_on(workers: Workers, waits: Waits) -> RuntimeError:
        streams[0].join(60)
        assert not streams[0].is_alive()
        assert waits.startup_s.keys() == {"learner"}
        assert pids(workers) == first
        sessions[0].workers = workers
        sessions[0].check_each()
        answers = in_order(workers.engines.stream(REQUESTS, GREEDY))
        assert {answer.policy_version for answer in answers} == {1}
        sessions[0].learn_and_sync()
        sessions[0].check_each()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 0
        os.kill(first[0], signal.SIGKILL)  # one that does not answer is started again
        return OutOfMemory("update_actor", "tried to allocate 2.3 GiB")

    def fail_at_once(workers: Workers, waits: Waits) -> RuntimeError:
        sessions[0].workers = workers
        sessions[0].check_answers()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 1
        first[:] = pids(workers)
        return OutOfMemory("update_actor", "in an attempt that has done no step")

    less = {"model.gradient_checkpointing": True, "resources.learner_threads": 1}
    attempts.fail(config, 0, lose_learner)
    attempts.fail(with_unchecked(config, less), 1, go_on)
    attempts.fail(with_unchecked(config, less), 2, fail_at_once)
    assert attempts.kept.workers is None
    assert all(map(is_gone, first))
    survived("learner lost", "two engines continue")


def drain(workers: Workers, requests: list[GenerationRequest]) -> None:
    with suppress(RuntimeError):  # the run has ended
        list(workers.engines.stream(requests, SamplingSettings(64, 1.0)))


@pytest.mark.slow
def test_an_engines_setting_that_changes_and_an_engines_error_need_new_engines(
    tiny_model_path, tmp_path, settings
):
    attempts = Attempts(tiny_model_path, tmp_path)
    seen: list[int] = []

    def fail_in(phase: str, workers: Workers, waits: Waits) -> RuntimeError:
        assert all(map(is_gone, seen))
        seen.extend(pids(workers))
        return OutOfMemory(phase, "")

    config = settings(**SECTIONS)
    changed = with_unchecked(config, {"rollout.max_num_seqs": 16})
    attempts.fail(config, 0, partial(fail_in, "update_actor"))
    assert attempts.kept.workers is not None
    attempts.fail(changed, 0, partial(fail_in, "gen"))
    assert len(seen) == 4
    assert attempts.kept.workers is None
    assert all(map(is_gone, seen))
