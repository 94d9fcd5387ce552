"""Engines that join late and lose their machine: real Ray nodes, all of this machine."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from rl_core.config.run import RunConfig
from rl_core.types import Rollout
from rl_core.workers.cluster import Workers
from tests.rl_core.workers.test_weight_sync import Session
from tests.support.chaos import Ledger
from tests.support.harness import ROOT
from tests.support.waiting import wait_for

NODE = {"object_store_memory": 100_000_000}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A head with room for a learner and one engine."""
    head = {"num_cpus": 2, "include_dashboard": False, **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


class Said(logging.Handler):
    """What workers warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages = list[str]()
        logging.getLogger("rl_core.workers").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def times(self, words: str) -> int:
        return sum(words in message for message in self.messages)


def come_and_go(
    settings: dict[str, object], model_path: Path, rollouts: list[Rollout], folder: Path
) -> None:
    """In a process of its own: what Ray's C++ knows of tokens, it knows for a process's life."""
    said = Said()
    with cluster() as nodes:
        config = RunConfig.model_validate(settings)
        config = config.model_copy(
            update={"resources": config.resources.model_copy(update={"ray_address": nodes.address})}
        )
        with Workers.start(config, model_path, log_folder=folder / "logs") as workers:
            session = Session(workers, rollouts, folder)

            def until_both_answer() -> None:
                """The one that is new is given weights when it is next looked for."""
                wait_for(lambda: len(workers.engines.ready()) == 2)
                session.check_answers()

            def steps_alone() -> bool:
                session.learn_and_sync()
                session.check_answers()
                return session.receivers() == {"engine_0"}

            def started_again() -> bool:
                session.check_answers()  # who is asked for notices that it died again
                return said.times("engine_1 has started again, in") > 0

            assert steps_alone()

            machine = nodes.add_node(num_cpus=1, **NODE)
            wait_for(lambda: said.times("engine_1 joins, in") == 1)
            until_both_answer()
            session.learn_and_sync()
            assert session.receivers() == {"engine_0", "engine_1"}

            nodes.remove_node(machine, allow_graceful=False)
            session.check_answers()
            wait_for(steps_alone, poll_s=1.0)  # Ray notices a lost machine after a while
            # Twice where it had not yet, and started the engine anew on the lost machine too.
            assert workers.engines.end_step()["rollout/engine_restarts"] >= 1

            nodes.add_node(num_cpus=1, **NODE)
            wait_for(started_again, poll_s=1.0)
            until_both_answer()
            session.learn_and_sync()
            assert session.receivers() == {"engine_0", "engine_1"}
            session.check_answers()


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_engines_come_and_go_with_their_machines(
    tiny_model_path: Path,
    tmp_path: Path,
    settings: Callable[..., RunConfig],
    random_rollouts: Callable[..., list[Rollout]],
    monkeypatch: pytest.MonkeyPatch,
    survived: Ledger,
) -> None:
    monkeypatch.syspath_prepend(ROOT)  # for the process, which imports this file
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # its Ray takes this machine's address
    config = settings(
        data={"max_prompt_length": 64, "max_response_length": 64},
        actor={"lr": 1e-2},
        rollout={
            "engine": "hf",
            "num_engines": 2,
            "min_engines": 1,
            "weight_sync": "broadcast",
        },
        resources={"learner_threads": 1},
    )
    arguments = (config.model_dump(mode="json"), tiny_model_path, random_rollouts(8), tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=come_and_go, args=arguments)
    process.start()
    try:
        process.join(800)
    finally:
        process.kill()
    assert process.exitcode == 0  # else its traceback is in what was written to standard error
    survived("machine lost", "of one of two engines, for two steps")
