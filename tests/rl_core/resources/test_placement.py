"""Who shares a card, and who loads after whom; Ray's own placement is the oracle of the plan."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.run import RunConfig
from rl_core.resources.placement import (
    asked_of_ray,
    card_tenants,
    loading_queues,
    shares_a_card,
    too_little,
)
from rl_core.workers import cluster as workers_module
from rl_core.workers.cluster import Workers

CARDS = {name: ("here", name) for name in "ABC"}


def run_config(
    learner: float, engine: float, num_engines: int = 1, *, ranks: int = 1, parts: int = 1
) -> RunConfig:
    gpus = {"learner_gpus": learner, "rollout_gpus": engine}
    resources = {**gpus, "learner_ranks": ranks, "learner_threads": 1}
    rollout = {"num_engines": num_engines, "tensor_parallel_size": parts}
    return RunConfig.model_validate({"resources": resources, "rollout": rollout})


@pytest.mark.parametrize(
    ("learner", "engine", "num_engines", "tenants"),
    [
        (0, 0, 2, []),
        (0.5, 0.5, 1, [["engine_0", "learner"]]),
        (0.5, 0.25, 2, [["engine_0", "engine_1", "learner"]]),
        # Half a card each: two engines fill the first.
        (0.5, 0.5, 2, [["engine_0", "engine_1"], ["learner"]]),
        (1, 0.5, 1, [["engine_0"], ["learner"]]),
        (0.5, 1, 2, [["engine_0"], ["engine_1"], ["learner"]]),
        (0.5, 0, 2, [["learner"]]),
        (0, 0.5, 1, [["engine_0"]]),
        (2, 1, 1, [["engine_0"], ["learner"], ["learner"]]),
        # The fullest card that has room for it.
        (0.3, 0.6, 2, [["engine_0", "learner"], ["engine_1"]]),
    ],
)
def test_shares_of_cards_are_packed(learner, engine, num_engines, tenants):
    config = run_config(learner, engine, num_engines)
    assert card_tenants(config) == tenants
    assert shares_a_card(config) == any("learner" in card and len(card) > 1 for card in tenants)


@pytest.mark.parametrize(
    ("cards", "queues"),
    [
        ({"engine_0": "", "engine_1": "", "learner": ""}, ["engine_0", "engine_1", "learner"]),
        ({"engine_0": "A", "learner": "A"}, ["engine_0 learner"]),
        ({"learner_1": "B", "learner": "A", "engine_0": "B"}, ["engine_0 learner_1", "learner"]),
        ({"engine_0": "A", "learner": "B"}, ["engine_0", "learner"]),
        ({"engine_0": "A", "engine_1": "B", "learner": "B"}, ["engine_0", "engine_1 learner"]),
        # A learner on two cards waits for the engines of both.
        ({"engine_0": "A", "engine_1": "B", "learner": "AB"}, ["engine_0 engine_1 learner"]),
        ({"engine_0": "A", "engine_1": "A", "learner": ""}, ["engine_0 engine_1", "learner"]),
    ],
)
def test_who_shares_a_card_loads_one_by_one_and_the_learner_last(cards, queues):
    taken = {name: {CARDS[card] for card in held} for name, held in cards.items()}
    assert sorted(loading_queues(taken)) == sorted(queue.split() for queue in queues)


def test_an_engine_that_is_split_has_cards_of_its_own_in_one_piece():
    split = run_config(1, 1, 2, parts=2)
    assert card_tenants(split) == [["engine_0"]] * 2 + [["engine_1"]] * 2 + [["learner"]]
    asked = asked_of_ray(split, learner=True)
    assert asked["engine_1"] == {"CPU": 2, "GPU": 2}
    assert asked["learner"] == {"CPU": 1, "GPU": 1}


def test_every_learner_rank_has_room_of_its_own():
    asked = asked_of_ray(run_config(1, 1, ranks=2), learner=True)
    assert list(asked) == ["engine_0", "learner", "learner_1"]
    said = too_little(asked, [{"CPU": 8, "GPU": 2}])
    assert "1 engine of 1 CPU and 1 GPU + 2 learner ranks of 1 CPU and 1 GPU each are" in said
    assert "resources.learner_ranks" in said


def test_what_is_asked_of_ray_and_not_there_is_one_line():
    asked = asked_of_ray(run_config(1, 0.5, 2), learner=True)
    assert asked == {
        "engine_0": {"CPU": 1, "GPU": 0.5},
        "engine_1": {"CPU": 1, "GPU": 0.5},
        "learner": {"CPU": 1, "GPU": 1},
    }
    assert list(asked_of_ray(run_config(1, 0, 1), learner=False).values()) == [{"CPU": 1}]
    machine = {"CPU": 8, "GPU": 1, "memory": 10**9}
    assert too_little(asked, [machine, {"CPU": 2}, {"CPU": 2}]) == (
        "2 engines of 1 CPU and 0.5 GPUs each + learner of 1 CPU and 1 GPU are asked of Ray, which "
        "has 1 machine of 8 CPUs and 1 GPU + 2 machines of 2 CPUs and 0 GPUs: lower "
        "rollout.num_engines, resources.rollout_gpus or resources.learner_gpus, or give it more "
        "(resources.ray_address)"
    )
    # Enough in all, and no machine has it in one piece.
    large = {"engine_0": {"CPU": 4}}
    assert "resources.rollout_threads" in too_little(large, [{"CPU": 2}, {"CPU": 2}])


@given(
    st.dictionaries(
        st.sampled_from(["learner", "engine_0", "engine_1", "engine_2", "engine_3"]),
        st.sets(st.sampled_from("ABC")),
        min_size=1,
    )
)
def test_no_two_on_a_card_load_at_once_and_nobody_is_left_out(cards):
    queues = loading_queues({name: {CARDS[c] for c in held} for name, held in cards.items()})
    assert sorted(name for queue in queues for name in queue) == sorted(cards)
    place = {name: i for i, queue in enumerate(queues) for name in queue}
    for one in cards:
        for other in cards:
            assert not cards[one] & cards[other] or place[one] == place[other]
    for queue in queues:
        assert "learner" not in queue[:-1]


class RecordingActor:
    """Stands in for learner and engine, which need a real card: notes when it loads, and where."""

    def __init__(self, environment: dict[str, str], log_file: Path) -> None:
        self._log_file = log_file

    def load(self, config: RunConfig, *rest: object) -> tuple[int, str]:
        """Takes half a second."""
        self._note("begins")
        time.sleep(0.5)
        self._note("ends")
        return 0, ""

    def digest(self) -> str:
        """Of no weights."""
        return ""

    def _note(self, event: str) -> None:
        with (self._log_file.parent / "events").open("a") as file:
            file.write(json.dumps([self._log_file.stem, event]) + "\n")


def start(config: RunConfig, folder: Path) -> list[list[str]]:
    folder.mkdir()
    with Workers.start(config, folder, log_folder=folder):
        pass
    return [json.loads(line) for line in (folder / "events").read_text().splitlines()]


@pytest.mark.slow
def test_ray_loads_who_shares_a_card_one_by_one(tmp_path, monkeypatch):
    # Ray believes in two cards that are not there; where it puts whom is its own doing.
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"GPU": 2}))
    monkeypatch.setattr(workers_module, "LearnerActor", RecordingActor)
    monkeypatch.setattr(workers_module, "RolloutActor", RecordingActor)
    one_by_one = [
        [name, event]
        for name in ("engine_0", "engine_1", "learner")
        for event in ("begins", "ends")
    ]
    assert start(run_config(0.4, 0.3, 2), tmp_path / "shared") == one_by_one
