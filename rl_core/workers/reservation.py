"""Room on Ray's machines for all processes of a run, reserved before any of them starts.

All of it or nothing: else Ray would start what fits, and wait for the rest for ever. If a process
dies, its successor gets its place, if need be on another machine that joins Ray.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_core.config.run import RunConfig
from rl_core.errors import RAY, WorkerDied
from rl_core.resources.placement import asked_of_ray, in_words, lacking, shares_a_card, too_little

_ROOM_WITHIN_S: Final = 60.0
"""The longest wait for room that others hold: an earlier run may be about to end."""
_MACHINE_WITHIN_S: Final = 600.0
"""The longest wait for a lost machine, or for another in its place."""
_POLL_S: Final = 0.05


class Reservation:
    """A place for each process of a run; `report` gets a sentence on what this waits for.

    Raises:
        ValueError: no machine could ever hold one of them, and no lost machine came back.
        WorkerDied: others held the room for too long.
    """

    def __init__(self, config: RunConfig, *, learner: bool, report: Callable[[str], None]) -> None:
        self._asked = asked_of_ray(config, learner=learner)
        # Ray itself reports this only if a single process is too large.
        if lacking(self._asked, _machines()) and not _has_lost_machines():
            raise ValueError(too_little(self._asked, _machines()))
        # Processes that share cards go to one machine if it has room; others are spread.
        strategy = "PACK" if learner and shares_a_card(config) else "SPREAD"
        self._group: PlacementGroup = placement_group(list(self._asked.values()), strategy)
        self.wait(report)

    def options(self, name: str) -> dict[str, Any]:
        """Returns the options of an actor's class that put it into its reserved place."""
        bundle = self._asked[name]
        index = list(self._asked).index(name)
        return {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index),
        }

    def nodes(self) -> set[str]:
        """Returns Ray's ids of the machines on which places are now."""
        return set(placement_group_table(self._group)["bundles_to_node_id"].values())

    def wait(self, report: Callable[[str], None]) -> None:
        """Waits until all places are there, again after a machine is lost."""
        since = time.monotonic()
        reported = ""
        while (table := placement_group_table(self._group))["state"] != "CREATED":
            waits_for = ""
            state = table["stats"]["scheduling_state"]
            if state == "INFEASIBLE" or lacking(self._asked, _machines()):
                what = too_little(self._asked, _machines())
                if not _has_lost_machines() or time.monotonic() - since > _MACHINE_WITHIN_S:
                    raise ValueError(what)
                waits_for = f"a machine that is gone: {what}"
            else:
                free = in_words(ray.available_resources())
                if time.monotonic() - since > _ROOM_WITHIN_S:
                    raise WorkerDied(RAY, f"it has no room: {free} are free, others hold the rest")
                if state == "NO_RESOURCES":
                    waits_for = f"room in Ray: {free} are free"
            if waits_for and waits_for.partition(":")[0] != reported.partition(":")[0]:
                since = time.monotonic()
                reported = waits_for
                report(f"waiting for {waits_for}")
            time.sleep(_POLL_S)


def _machines() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _has_lost_machines() -> bool:
    """Returns whether a machine has left this cluster: it may come back."""
    return not all(node["Alive"] for node in ray.nodes())
