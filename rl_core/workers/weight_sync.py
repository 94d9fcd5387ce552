"""Weights to all engines by one broadcast, seen from the trainer loop (models/weight_channel.py).

Whatever breaks it costs the broadcast alone: the weights then go through Ray's object store, as
they always do for an engine that starts, and the next broadcast is between whoever is there then.
"""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import Future
from typing import Any

import ray

from rl_core.config.run import RunConfig
from rl_core.errors import SyncBroken, WorkerDied
from rl_core.resources.placement import broadcast_backend, learner_name
from rl_core.types import Meeting
from rl_core.workers.engines import Engines, Result
from rl_core.workers.learner_ranks import LearnerRanks

_logger = logging.getLogger(__name__)


class WeightBroadcast:
    """The broadcasts of one run.

    Args:
        config: the run's settings.
        learner: who sends.
        engines: who receive.
        result: see `Result`.
    """

    def __init__(
        self, config: RunConfig, learner: LearnerRanks, engines: Engines, result: Result
    ) -> None:
        self._config, self._result = config, result
        self._learner, self._engines = learner, engines
        self._first = learner.actors[learner_name(0)]
        self.met: dict[str, Any] = {}
        """Ray's handles, by name, of the engines in the last broadcast."""
        self._names = (f"group_{number}" for number in itertools.count())

    def __call__(self, policy_version: int) -> bool:
        """Says whether all engines that are ready hold the learner's weights now.

        Args:
            policy_version: how many updates made them.
        """
        ready = self._engines.ready()
        try:
            if ready != self.met:
                self.met = {}
                self._meet(ready)
                self.met = ready
            receiving = {
                name: actor.receive_weights.remote(policy_version).future()
                for name, actor in ready.items()
            }
            self._learner.broadcast_weights()
            self._all_answers(receiving)
        except SyncBroken as loss:
            self.met = {}
            _logger.warning("%s; this time they go through Ray's object store", loss)
            return False
        self._engines.hold(self._learner.weights, policy_version)
        return True

    def _meet(self, engines: dict[str, Any]) -> None:
        """Has the learner's first rank and these engines find each other."""
        # Else one that is gone would be waited for.
        self._all_answers(
            {name: actor.__ray_ready__.remote().future() for name, actor in engines.items()}
        )
        config = self._config
        host = self._answer(self._first.__ray_call__.remote(own_address))
        port, shapes = self._answer(self._first.open_broadcast.remote(host))
        parts = config.rollout.tensor_parallel_size
        meeting = Meeting(
            host=host,
            port=port,
            name=next(self._names),
            size=1 + parts * len(engines),
            backend=broadcast_backend(config),
            dtype=config.model.dtype,
            shapes=shapes,
            timeout_s=config.watchdog.stall_s,
        )
        joining = {
            name: actor.join_broadcast.remote(meeting, 1 + parts * number).future()
            for number, (name, actor) in enumerate(engines.items())
        }
        self._answer(self._first.join_broadcast.remote(meeting))
        self._all_answers(joining)

    def _answer(self, pending: Any) -> Any:
        return self._result(learner_name(0), pending.future())

    def _all_answers(self, pending: dict[str, Future[Any]]) -> None:
        """Waits for the engines; one that dies is started again when the weights come next."""
        for name, call in pending.items():
            try:
                self._result(name, call)
            except WorkerDied as death:
                raise SyncBroken(str(death)) from death


def is_wanted(config: RunConfig) -> bool:
    """Says whether `rollout.weight_sync` asks for broadcasts, on the machines that Ray has now."""
    if config.rollout.weight_sync != "auto":
        return config.rollout.weight_sync == "broadcast"
    if config.rollout.updates_in_flight:
        return False
    on_cards = config.resources.learner_gpus or config.resources.rollout_gpus
    return not on_cards and sum(node["Alive"] for node in ray.nodes()) > 1


def own_address(actor: object) -> str:
    """Returns the address of an actor's machine; runs within it."""
    return str(ray.util.get_node_ip_address())
