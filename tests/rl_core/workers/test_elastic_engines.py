"""Engines that are killed and lose their machine: real Ray nodes of this machine."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from ray._private.node import Node
from ray.cluster_utils import Cluster

from rl_core.config.run import RunConfig
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.types import GenerationRequest, Rollout, SamplingSettings
from rl_core.workers import cluster as workers_module
from rl_core.workers.cluster import Workers
from tests.support.faulty_actors import FaultyRolloutActor, Heard
from tests.support.harness import ROOT
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(900)]

SECTIONS = {
    "data": {"max_prompt_length": 64, "max_response_length": 64},
    "actor": {"lr": 1e-2},
    "rollout": {"engine": "hf", "num_engines": 2},
}
NODE = {"object_store_memory": 100_000_000}
GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 3 * i)), seed=i) for i in range(4)]


class Session:
    """Workers that learn, and what the engines must answer."""

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
        self.workers.write_snapshot(folder)
        engine = HfEngine(folder, dtype="float32", max_num_seqs=8, on_gpu=False)
        answers = in_order(engine.generate(REQUESTS, GREEDY))
        expected = [answer.response_ids.tolist() for answer in answers]
        assert expected != self._last, "weights that change no response would prove nothing"
        self._last = expected

    def check_answers(self) -> None:
        answers = in_order(self.workers.engines.stream(REQUESTS, GREEDY))
        assert [answer.response_ids.tolist() for answer in answers] == self._last

    def check_each(self) -> None:
        """Each engine by itself has the last weights."""
        self.check_answers()  # one that is new is given them when it is looked for
        for name, actor in self.workers.engines.actors.items():
            ray.get(actor.begin.remote(REQUESTS, GREEDY, "gen"))
            answers = in_order(ray.get(actor.next_finished.remote(len(REQUESTS))))
            assert [answer.response_ids.tolist() for answer in answers] == self._last, name

    def engine_on(self, machine: Node) -> str:
        """The name of the engine on a machine that has no room for anything else."""
        (name,) = (
            name
            for name, actor in self.workers.engines.actors.items()
            if ray.get(actor.__ray_call__.remote(own_machine)) == machine.node_id
        )
        return name

    def kill(self, name: str) -> None:
        ray.kill(self.workers.engines.actors[name])


def own_machine(actor: object) -> str:
    return str(ray.get_runtime_context().get_node_id())


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A head with room for a learner of two threads and one engine."""
    head = {"num_cpus": 3, "include_dashboard": False, **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def come_and_go(
    settings: dict[str, object], model_path: Path, rollouts: list[Rollout], folder: Path
) -> None:
    """In a process of its own: what Ray's C++ knows of tokens, it knows for a process's life."""
    heard = Heard()
    with cluster() as nodes:
        machine = nodes.add_node(num_cpus=1, **NODE)
        config = RunConfig.model_validate(settings)
        config = config.model_copy(
            update={"resources": config.resources.model_copy(update={"ray_address": nodes.address})}
        )
        with Workers.start(config, model_path, log_folder=folder / "logs") as workers:
            session = Session(workers, rollouts, folder)

            lost = session.engine_on(machine)

            def is_missed() -> bool:
                """A step; says whether Ray has noticed the loss of the machine."""
                session.learn_and_sync()
                session.check_answers()
                return heard.times(f"{lost} died") != []

            def started_again() -> bool:
                session.check_answers()  # who is asked for notices that it died again
                return heard.times(f"{lost} has started again, in") != []

            session.learn_and_sync()
            session.check_each()

            nodes.remove_node(machine, allow_graceful=False)
            session.check_answers()
            wait_for(is_missed, poll_s=1.0)
            # Twice where it had not yet, and started the engine anew on the lost machine too.
            assert workers.engines.end_step()["rollout/engine_restarts"] >= 1
            session.learn_and_sync()
            session.check_answers()

            nodes.add_node(num_cpus=1, **NODE)
            wait_for(started_again, poll_s=1.0)
            session.check_each()
            session.learn_and_sync()
            session.check_each()


def test_engines_come_and_go_with_their_machines(
    tiny_model_path, tmp_path, settings, random_rollouts, monkeypatch, survived
):
    monkeypatch.syspath_prepend(ROOT)  # for the process, which imports this file
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # its Ray takes this machine's address
    config = settings(**SECTIONS, resources={"learner_threads": 2})
    arguments = (config.model_dump(mode="json"), tiny_model_path, random_rollouts(8), tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=come_and_go, args=arguments)
    process.start()
    try:
        process.join(800)
    finally:
        process.kill()
    assert process.exitcode == 0  # else its traceback is in what was written to standard error
    survived("machine lost", "of one of two engines, for two steps")


def test_new_weights_reach_all_engines_and_outlive_each_of_them(
    tiny_model_path, tmp_path, settings, random_rollouts, monkeypatch, survived
):
    monkeypatch.setattr(workers_module, "RolloutActor", FaultyRolloutActor)
    config = settings(**SECTIONS, resources={"learner_threads": 1, "learner_ranks": 2})
    heard = Heard()

    with Workers.start(config, tiny_model_path, log_folder=tmp_path / "logs") as workers:
        session = Session(workers, random_rollouts(8), tmp_path)
        for _ in range(2):
            session.learn_and_sync()
            session.check_each()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 0

        session.kill("engine_0")  # while idle: found when weights come
        session.learn_and_sync()
        session.check_answers()
        wait_for(lambda: len(heard.times("has started again, in")) == 1)
        session.check_each()
        workers.engines.end_step()

        ray.get(workers.engines.actors["engine_1"].die_at_weights.remote())
        session.learn_and_sync()
        session.check_answers()
        wait_for(lambda: len(heard.times("has started again, in")) == 2)
        session.check_each()
        workers.engines.end_step()

        for name in ("engine_0", "engine_1"):  # nobody has the weights but Ray's object store
            session.kill(name)
        session.check_answers()
        assert workers.engines.end_step()["rollout/engine_restarts"] == 2
    survived("SIGKILL", "an engine as weights come, idle, all at once")
