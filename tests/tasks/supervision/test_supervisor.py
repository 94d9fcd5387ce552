"""Training that is killed and stalled in every part, and the processes that must not outlive it."""

import itertools
import logging
import os
import random
import re
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import psutil
import pytest

from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.data.dataset import write_dataset
from rl_core.errors import Stalled, WorkerDied
from rl_core.runs.run_folder import RunFolder
from tasks.supervision import supervisor as supervision
from tasks.train import train_supervised
from tests.rl_core.test_trainer import comparable, rollouts
from tests.support.programs import living
from tests.support.runs import short

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 16
MARKER = "TEST_SUPERVISION_MARKER"
VICTIMS = {
    "Ray's head": "gcs/gcs_server",
    "learner": "LearnerActor",
    "trainer": "tasks.supervision.child trainer",
}


@dataclass
class Place:
    """A storage root and a temporary folder, and the mark of all processes that start there."""

    overrides: list[str]
    data: Path
    temp_root: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)

    def config(self, run_id: str, *more: str) -> RunConfig:
        return compose([*self.overrides, f"run_id={run_id}", *more])

    def processes(self, part: str = "") -> list[psutil.Process]:
        return living(MARKER, self.marker, part)

    def is_clean(self) -> bool:
        """Says whether no process and no folder of Ray is left."""
        return not self.processes() and not list(self.temp_root.glob("rl-*"))


def shared_memory() -> set[str]:
    """Files in memory, but for those of databases and vLLM, which are other tests'."""
    names = os.listdir("/dev/shm")  # noqa: PTH208
    return {name for name in names if not name.startswith(("PostgreSQL.", "vllm_dist_"))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: list[str]) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("out")
    overrides = [
        *short(tiny_overrides, total_steps=STEPS, save_freq=2, test_freq=8),
        f"storage.root={root}",
        # What a resume must also take up: problems passed over, a step ahead, groups replaced.
        *("data.curriculum=pass_rate", "rollout.staleness=1", "algorithm.resample_rounds=1"),
        *("algorithm.estimator=grpo", "algorithm.group_size=2", "algorithm.kl_coef=0"),
    ]
    before = shared_memory()
    # Short: Ray's sockets lie in it.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as temp:
        config = compose(overrides)
        write_dataset(config.env, config.data, root / "data" / "tiny")
        made = Place(overrides, root / "data" / "tiny", Path(temp))
        patch.setenv(MARKER, made.marker)
        patch.setenv("TMPDIR", temp)
        patch.setattr(tempfile, "tempdir", temp)
        yield made
        assert made.is_clean()
    assert shared_memory() <= before


@dataclass
class Attempts:
    """Starts of one run's training."""

    place: Place
    config: RunConfig
    steps: list[list[int]] = field(default_factory=list)
    """Done by each attempt, in their order."""

    def train(
        self,
        strike: Callable[[], None] | None = None,
        *,
        after_steps: int | None = 1,
        delay_s: float = 0,
    ) -> int:
        """Trains until it ends; `strike` is called once: after so many steps, or when Ray is up."""
        run = RunFolder(self.config.storage.root / "runs" / str(self.config.run_id))
        pending = [strike] if strike else []
        self.steps.append([])

        def hit() -> None:
            if pending:
                time.sleep(delay_s)
                pending.pop()()

        def on_step(step: int, last_step: int, metrics: dict[str, float]) -> None:
            self.steps[-1].append(step)
            if len(self.steps[-1]) == after_steps:
                hit()

        class Heard(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if after_steps is None and record.getMessage() == "Ray is up":
                    hit()

        logger = logging.Logger("heard")
        logger.addHandler(Heard())
        try:
            return train_supervised(
                self.config,
                run,
                data=self.place.data,
                model_path=Path(str(self.config.model.path)),
                on_step=on_step,
                logger=logger,
            )
        finally:
            assert not pending
            assert self.place.is_clean()

    def steps_lost(self, attempt: int) -> int:
        """Steps of one attempt that a later one did again."""
        again = {step for later in self.steps[attempt + 1 :] for step in later}
        return len(again & set(self.steps[attempt]) - {0})


@pytest.fixture(scope="module")
def undisturbed(place: Place) -> RunFolder:
    run = RunFolder.create(place.config("whole"))
    attempts = Attempts(place, place.config("whole"))
    assert attempts.train() == STEPS
    assert attempts.steps == [list(range(STEPS + 1))]
    assert max(run.metrics.values("curriculum/passed_over_frac")) > 0
    return run


def kill(place: Place, part: str, number: signal.Signals = signal.SIGKILL) -> None:
    (victim,) = place.processes(part)
    victim.send_signal(number)


def stop_engine_and_hurry(place: Place, patch: pytest.MonkeyPatch) -> None:
    """Stops the engine; the watchdog's clock runs 200 times as fast from then until it stalls."""
    kill(place, "RolloutActor", signal.SIGSTOP)
    start, dump_stacks = time.monotonic(), supervision.process_group.dump_stacks
    stalled: list[float] = []

    def monotonic() -> float:
        now = time.monotonic()
        until = stalled[0] if stalled else now
        return start + 200 * (until - start) + now - until

    def dump(group: str) -> None:
        stalled.append(time.monotonic())
        dump_stacks(group)

    patch.setattr(supervision, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    patch.setattr(supervision.process_group, "dump_stacks", dump)


def check_equal(run: RunFolder, undisturbed: RunFolder, until: int = STEPS) -> None:
    assert [row["step"] for row in comparable(run)] == list(range(STEPS + 1))
    assert comparable(run)[: until + 1] == comparable(undisturbed)[: until + 1]
    got, expected = (rollouts(one).filter(pl.col("step") <= until) for one in (run, undisturbed))
    assert got.equals(expected)


@pytest.mark.chaos
def test_kills_and_stalls_change_nothing(place, undisturbed, survived, monkeypatch):
    chance = random.Random(5)
    config = place.config("killed")
    run = RunFolder.create(config)
    attempts = Attempts(place, config)
    for name, part in VICTIMS.items():
        with pytest.raises(WorkerDied) as died:
            attempts.train(
                partial(kill, place, part),
                after_steps=None if name == "Ray's head" else chance.randint(1, 4),
                delay_s=chance.uniform(0, 0.4),
            )
        if name == "trainer":
            assert died.value.worker == "trainer"
            assert "killed by SIGKILL; " in died.value.detail

    named = r"no progress for \d{4} s: (gen|evaluate|sync) for \d+ s.*, engine_0, \d+ s"
    with monkeypatch.context() as patch, pytest.raises(Stalled, match=named):
        attempts.train(
            partial(stop_engine_and_hurry, place, patch), after_steps=chance.randint(1, 4)
        )
    for name in ("trainer", "learner", "engine_0"):
        assert "most recent call first" in (run.path / "workers" / f"{name}.log").read_text()

    # Saved off the schedule, as by Ctrl-C: the next step's responses are of the newest policy.
    stalled_after = attempts.steps[-1][-1]
    assert attempts.train() == STEPS
    check_equal(run, undisturbed, until=stalled_after)
    for attempt, name in enumerate(VICTIMS):
        survived("SIGKILL", name, steps_lost=attempts.steps_lost(attempt))
    assert attempts.steps_lost(len(VICTIMS)) == 0, "a stalled run saves what it has learned"
    survived("stall", "engine")


@pytest.mark.chaos
def test_a_stopped_engine_costs_no_step_and_no_attempt(place, undisturbed, survived):
    config = place.config("stopped", "watchdog.stall_s=240")
    run = RunFolder.create(config)
    attempts = Attempts(place, config)
    assert attempts.train(partial(kill, place, "RolloutActor", signal.SIGSTOP)) == STEPS
    check_equal(run, undisturbed)
    assert sum(map(int, run.metrics.values("rollout/engine_hangs"))) == 1
    (attempt,) = run.read().attempts
    before = {"delay", "trainer", "inputs", "first response", "all"}
    assert attempt.startup_s.keys() - {"command", "data and model"} | {"delay"} == before | {
        *("Ray", "engine_0", "learner")
    }
    survived("hang", "the only engine")


@pytest.mark.parametrize(
    ("phases", "silent_s"), [([], 1800), (["load"], 1800), (["load", "gen"], 40)]
)
def test_a_slow_start_has_a_limit_of_its_own(monkeypatch, tmp_path, phases, silent_s):
    """A clock that moves on by 10 s at each look, and a child that says no more."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(supervision.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(supervision.process_group, "dump_stacks", lambda group: None)
    monkeypatch.setattr(supervision, "_DUMP_S", 0.0)
    said = [{"progress": phase} for phase in phases]
    stops: list[signal.Signals] = []

    def receive(timeout_s: float) -> dict[str, str]:
        if not said:
            raise TimeoutError
        return said.pop(0)

    process = SimpleNamespace(poll=lambda: None, send_signal=stops.append)
    child = SimpleNamespace(process=process, receive=receive)
    stop = SimpleNamespace(asked_by=None)
    watched = supervision.Watched("trainer", tmp_path / "workers", 40)
    with pytest.raises(Stalled) as caught:
        list(supervision._messages(child, stop, watched, "group", logging.getLogger()))
    assert caught.value.phase == (phases or ["start"])[-1]
    (seconds,) = re.findall(r"no progress for (\d+) s", str(caught.value))
    assert silent_s < int(seconds) <= silent_s + 20
    assert stops == [signal.SIGTERM]
