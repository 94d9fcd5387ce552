"""Engines that live on when only the learner fails, on real Ray; they would else start anew."""

import os
import threading
from contextlib import suppress
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
    config = RunConfig.model_validate({"rollout": {"engine": "hf"}})
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


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_engines_outlive_the_learner_and_have_the_weights_of_the_next_one(
    tiny_model_path, tmp_path, settings, random_rollouts, survived, engine
):
    sections = SECTIONS | {"rollout": SECTIONS["rollout"] | {"engine": engine, "kv_cache_mib": 16}}
    config = settings(**sections, resources={"learner_threads": 2})
    kept = KeptEngines(keeps=True)
    logs = tmp_path / "logs"
    rollouts = random_rollouts(8)
    many = [
        GenerationRequest(request.prompt_ids, seed) for seed in range(99) for request in REQUESTS
    ]
    with (
        pytest.raises(WorkerDied, match="learner died"),
        Workers.start(config, tiny_model_path, log_folder=logs, kept=kept) as workers,
    ):
        session = Session(workers, rollouts, tmp_path)
        session.learn_and_sync()
        first = pids(workers)
        busy = threading.Thread(target=drain, args=(workers, many))
        busy.start()
        ray.kill(workers.ranks["learner"])
        workers.learn(rollouts, 2)

    less = with_unchecked(config, {"model.gradient_checkpointing": True})
    less = with_unchecked(less, {"resources.learner_threads": 1})
    waits = Waits()
    with (
        pytest.raises(OutOfMemory),
        Workers.start(
            less,
            tiny_model_path,
            resume_from=tmp_path / "1",
            policy_version=1,
            log_folder=logs,
            waits=waits,
            kept=kept,
        ) as workers,
    ):
        busy.join(60)
        assert not busy.is_alive()
        assert waits.startup_s.keys() == {"learner"}
        assert pids(workers) == first
        session.workers = workers
        session.check_each()
        answers = in_order(workers.engines.stream(REQUESTS, GREEDY))
        assert {answer.policy_version for answer in answers} == {1}
        session.learn_and_sync()
        session.check_each()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 0
        os.kill(first[0], 9)  # one that does not answer starts anew
        raise OutOfMemory("update_actor", "tried to allocate 2.3 GiB")

    with (
        pytest.raises(OutOfMemory),
        Workers.start(
            less, tiny_model_path, resume_from=tmp_path / "2", policy_version=2, kept=kept
        ) as workers,
    ):
        session.workers = workers
        session.check_answers()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 1
        again = pids(workers)
        assert set(again) & set(first) == {first[1]}
        raise OutOfMemory("update_actor", "again, in an attempt that has done no step")
    assert kept.workers is None
    assert all(map(is_gone, again))
    survived("learner lost", f"two engines ({engine}) go on", steps_lost=0)


def drain(workers: Workers, requests: list[GenerationRequest]) -> None:
    with suppress(RuntimeError):  # the run has ended
        list(workers.engines.stream(requests, SamplingSettings(64, 1.0)))


@pytest.mark.slow
def test_an_engines_setting_that_changes_and_a_stranger_need_new_engines(tiny_model_path, settings):
    kept = KeptEngines(keeps=True)
    config = settings(**SECTIONS)
    changed = with_unchecked(config, {"rollout.max_num_seqs": 16})
    seen = []
    for one, error in ((config, "load_learner"), (changed, "gen"), (changed, "gen")):
        with (
            pytest.raises(OutOfMemory),
            Workers.start(one, tiny_model_path, kept=kept) as workers,
        ):
            assert all(map(is_gone, [pid for some in seen for pid in some]))
            seen.append(pids(workers))
            raise OutOfMemory(error, "")
        assert (kept.workers is None) == (error == "gen")
    assert all(map(is_gone, seen[-1]))
