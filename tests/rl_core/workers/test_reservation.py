"""A real Ray with two CPUs, of which a run asks more than there is or more than is free."""

from collections.abc import Iterator

import pytest
import ray

from rl_core.errors import WorkerDied
from rl_core.workers import reservation
from rl_core.workers.reservation import Reservation
from tests.support.runs import run_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    options = {"include_dashboard": False, "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    ray.init(address="local", num_cpus=2, num_gpus=0, **options)
    yield
    ray.shutdown()


def reserve(heard: list[str], num_engines: int = 1, **resources: float) -> Reservation:
    config = run_config(
        rollout={"num_engines": num_engines}, resources={"learner_threads": 1, **resources}
    )
    return Reservation(config, learner=True, report=heard.append)


def test_what_no_machine_could_ever_hold_is_refused_at_once(two_cpus):
    heard: list[str] = []
    with pytest.raises(ValueError, match="2 engines of 1 CPU and 0 GPUs each") as many:
        reserve(heard, num_engines=2)
    assert "which has 1 machine of 2 CPUs and 0 GPUs" in str(many.value)
    assert "\n" not in str(many.value)
    with pytest.raises(ValueError, match=r"lower .* resources\.rollout_gpus or resources\.l"):
        reserve(heard, rollout_gpus=0.5)
    assert heard == []


def test_what_others_hold_is_waited_for_and_then_refused(two_cpus, monkeypatch):
    heard: list[str] = []
    place = reserve(heard).options("learner")
    assert (place["num_cpus"], place["num_gpus"]) == (1, 0)
    assert place["scheduling_strategy"].placement_group_bundle_index == 1
    assert heard == []
    monkeypatch.setattr(reservation, "_ROOM_WITHIN_S", 0.5)
    with pytest.raises(WorkerDied, match="Ray died: it has no room: 0 CPUs and 0 GPUs are free"):
        reserve(heard)
    assert heard == ["waiting for room in Ray: 0 CPUs and 0 GPUs are free"]
