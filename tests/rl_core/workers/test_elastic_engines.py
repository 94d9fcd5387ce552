"""Engines that join late and lose their machine: real Ray nodes, all of this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from rl_core.config.run import RunConfig
from rl_core.types import Rollout
from rl_core.workers.cluster import Workers
from tests.rl_core.workers.test_weight_sync import Session
from tests.support.chaos import Ledger
from tests.support.waiting import wait_for

NODE = {"object_store_memory": 100_000_000}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with room for a learner and one engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it takes this machine's address
        ray._raylet.Config.initialize("")
        head = {"num_cpus": 2, "include_dashboard": False, **NODE}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            cluster.shutdown()
    ray._raylet.Config.initialize("")  # or this process would remember it in other tests


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_engines_come_and_go_with_their_machines(
    cluster: Cluster,
    tiny_model_path: Path,
    tmp_path: Path,
    settings: Callable[..., RunConfig],
    random_rollouts: Callable[..., list[Rollout]],
    caplog: pytest.LogCaptureFixture,
    survived: Ledger,
) -> None:
    caplog.set_level(logging.WARNING, "rl_core.workers")
    config = settings(
        data={"max_prompt_length": 64, "max_response_length": 64},
        actor={"lr": 1e-2},
        rollout={
            "engine": "hf",
            "num_engines": 2,
            "min_engines": 1,
            "weight_sync": "broadcast",
        },
        resources={"learner_threads": 1, "ray_address": cluster.address},
    )

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    with Workers.start(config, tiny_model_path, log_folder=tmp_path / "logs") as workers:
        session = Session(workers, random_rollouts(8), tmp_path)

        def until_both_answer() -> None:
            """The one that is new is given weights when it is next looked for."""
            wait_for(lambda: len(workers.engines.ready()) == 2)
            session.check_answers()

        session.learn_and_sync()
        session.check_answers()
        assert session.receivers() == {"engine_0"}

        machine = cluster.add_node(num_cpus=1, **NODE)
        wait_for(lambda: said("engine_1 joins, in") == 1)
        until_both_answer()
        session.learn_and_sync()
        assert session.receivers() == {"engine_0", "engine_1"}

        cluster.remove_node(machine, allow_graceful=False)
        session.check_answers()
        for _ in range(2):
            session.learn_and_sync()
            session.check_answers()
        assert session.receivers() == {"engine_0"}
        # Twice where Ray had not yet noticed, and started the next process on the lost machine too.
        assert workers.engines.end_step()["rollout/engine_restarts"] in (1, 2)

        cluster.add_node(num_cpus=1, **NODE)
        wait_for(lambda: said("engine_1 has started again, in") == 1)
        until_both_answer()
        session.learn_and_sync()
        assert session.receivers() == {"engine_0", "engine_1"}
        session.check_answers()
    survived("machine lost", "of one of two engines, for two steps")
