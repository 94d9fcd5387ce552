"""Nights that Prefect's own schedule starts, as the shipped preset and the night's file say."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from flows.runs.lookup import settings_of_run
from rl_core.runs.run_folder import RunFolder
from tests.support.champions import crown
from tests.support.harness import WORKER, Prefect
from tests.support.listeners import Hook, hook
from tests.support.waiting import wait_for

NIGHTLY = "countdown-train-nightly"

# They wait for the clock, a quarter of an hour in all: a tier of their own.
pytestmark = [pytest.mark.slow, pytest.mark.nights, pytest.mark.timeout(1800)]


class Place:
    """A worker, and a schedule that asks for a night of the preset quickstart every minute."""

    def __init__(self, prefect: Prefect, told_to: Hook, root: Path) -> None:
        self.prefect, self.hook, self.root = prefect, told_to, root

    def finished(self, started_from: str) -> RunFolder:
        """Waits for a night from this model that is done, and returns its run."""
        found: list[RunFolder] = []

        def is_there() -> bool:
            for run in RunFolder.all_under(self.root):
                record = run.read() if run.is_there() else None
                if record is not None and (record.started_from or "").startswith(started_from):
                    assert record.status in ("running", "finished"), record.reason
                    if record.status == "finished":
                        found.append(run)
            return bool(found)

        wait_for(is_there, limit_s=900, seen=self.prefect.logs)
        return found[0]

    def crown(self, run: RunFolder) -> str:
        """Makes a night's checkpoint the champion, and returns its name."""
        for file in (self.root / "champions").glob("*.json"):
            file.unlink()
        config = settings_of_run(run)
        checkpoint = crown(config, run, Path(str(run.read().data)))
        return f"{run.run_id}/{checkpoint.name}"

    def told(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.hook.told if message["event"] == event]


@pytest.fixture(scope="module")
def place(prefect: Prefect) -> Iterator[Place]:
    root = prefect.folder / "scheduled"
    small = ["data.train_size=256", "data.test_size=16", "base_model.steps=5"]
    short = ["trainer.total_steps=2", "rollout.engine=hf", "data.train_batch_size=8"]
    overrides = [f"storage.root={root}", *small, *short, "actor.mini_batch_size=8"]
    prefect.deploy(at="* * * * *", overrides=overrides, webhook="NIGHT_HOOK")
    for run in prefect.flow_runs(NIGHTLY):  # one that was due already is of the deploy before
        if run["parameters"]["overrides"] != overrides:
            prefect.delete(run)
    with hook() as told_to:
        prefect.environment["NIGHT_HOOK"] = told_to.url
        with prefect.running(*WORKER):
            yield Place(prefect, told_to, root)
        del prefect.environment["NIGHT_HOOK"]
    prefect.pause_nights()


def test_each_night_starts_from_the_last_champion_with_a_seed_of_its_own(place):
    first = place.finished("afresh: no champion of countdown in")
    nights = [first]
    for _ in range(2):
        champion = place.crown(nights[-1])
        nights.append(place.finished(f"the champion {champion}, accuracy 1.000"))
    configs = [settings_of_run(run) for run in nights]
    assert configs[0].model.path is None
    assert configs[0].base_model.vocab_size == 800  # the shipped preset's, of which fewer are used
    assert len({config.seed for config in configs}) == 3
    rollouts = [pl.read_parquet(run.path / "rollouts" / "step_000001.parquet") for run in nights]
    asked = [sorted(set(rows["prompt_index"].to_list())) for rows in rollouts]
    assert asked[0] != asked[1] != asked[2]


def test_the_runs_folder_carries_the_time_at_which_it_was_to_start(place):
    for run in RunFolder.all_under(place.root):
        due = datetime.fromisoformat(str(run.read().night))
        assert run.run_id.startswith(f"{due:%Y%m%d-%H%M00}-")


def test_each_night_is_told_of_once(place):
    def told() -> list[dict[str, Any]]:
        return [*place.told("finished"), *place.told("promoted")]

    wait_for(lambda: len(told()) >= 3)  # a record is finished before its report and message are
    nights = [message["run_id"] for message in told()]
    assert len(nights) == len(set(nights)) >= 3
    text = told()[0]["text"]
    assert "accuracy 0." in text
    assert f"flow run: {place.prefect.url}" in text
