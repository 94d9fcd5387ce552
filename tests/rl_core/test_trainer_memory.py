"""The loop around a learner that runs out of memory: the run's log and metrics tell of it."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rl_core.batch import collate
from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.resources.token_budgets import log_out_of_memory
from rl_core.rewards.scoring import start_rewards
from rl_core.rollout.adaptive_engine import AdaptiveEngine
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.observers import OnStep, StepObserver
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings
from rl_core.workers.actors import PAD_ID
from tests.rl_core.test_trainer import comparable, rollouts, settings, trainer_of
from tests.support.learners import assert_close
from tests.support.memory_faults import engine_out_of_memory, out_of_memory

LATEST = "checkpoints/latest/model.safetensors"


class LocalWorkers:
    """A learner and an engine in this process, where a fault can be put into them."""

    def __init__(
        self, config: RunConfig, model_path: Path, resume_from: Path | None = None
    ) -> None:
        self.config = config
        self.learner = Learner(config, model_path, resume_from)
        self.engine = AdaptiveEngine(config, resume_from or model_path)
        self.engine.engine.policy_version = self.learner.steps_done
        self.failing_calls: dict[int, int] = {}
        """Of which stream, counted from 0, which MLP of the engine runs out of memory."""
        self._streams = itertools.count()
        self.end_step = self.engine.end_step
        self.engines = self
        self.snapshot, self.write_snapshot = self.learner.snapshot, self.learner.write_snapshot

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str = "gen"
    ) -> Iterator[tuple[int, Completion]]:
        call = self.failing_calls.get(next(self._streams))
        with engine_out_of_memory(() if call is None else {call}) as failed:
            yield from self.engine.generate(requests, sampling, phase)
        assert call is None or failed == [call]

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[Mapping[str, float], dict[str, list[float]]]:
        return self.learner.learn(collate(rollouts, PAD_ID))

    def sync_weights(self, policy_version: int) -> None:
        self.engine.engine.update_weights(self.learner.weights())
        self.engine.engine.policy_version = policy_version

    def held_weights(self) -> list[tuple[str, int, str]]:
        return []


def train_locally(
    workers: LocalWorkers, run: RunFolder, model_path: Path, on_step: OnStep, start_step: int = 0
) -> None:
    config = workers.config
    with (
        BackgroundSave(
            config.checkpoints, run.path, workers.snapshot, workers.write_snapshot
        ) as saves,
        start_rewards(config.env) as rewards,
    ):
        parts, observers = (workers, rewards, run, saves), [StepObserver(on_step=on_step)]
        last = trainer_of(config, model_path, *parts, observers=observers).train(start_step)
    assert last == config.trainer.total_steps


def train_with_a_log(workers: LocalWorkers, model_path: Path) -> RunFolder:
    run = RunFolder.create(workers.config)
    train_locally(workers, run, model_path, lambda step, _, found: log_out_of_memory(step, found))
    return run


@pytest.mark.slow
@pytest.mark.chaos
def test_what_ran_out_of_memory_is_in_log_and_metrics_and_leaves_the_run_as_an_undisturbed_one(
    tiny_model_path, tmp_path, caplog, survived
):
    runs = {}
    # Of the engine in the second step, and in the test after the last; of the critic in the second
    # step, of two updates each.
    for name, of_engine, of_critic in (("whole", {}, ()), ("injured", {2: 9, 6: 5}, {3})):
        # Adam makes of a gradient that is all rounding as much as of any: 1e-6 needs small steps.
        workers = LocalWorkers(settings(tmp_path, name, actor={"lr": 1e-4}), tiny_model_path)
        workers.failing_calls = of_engine
        with (
            out_of_memory(workers.learner, "update_critic", of_critic),
            caplog.at_level(logging.WARNING, logger="rl_core.resources.token_budgets"),
        ):
            runs[name] = train_with_a_log(workers, tiny_model_path)
    rows = runs["injured"].metrics.read()
    failed, now = (
        int(rows[2][f"memory/{name}/update_critic"]) for name in ("oom_tokens", "budget_tokens")
    )
    assert now == failed // 2
    assert sorted(m for m in caplog.messages if m.startswith("step")) == [
        "step 2: out of memory in gen: 4 -> 2 responses at a time, nothing was lost",
        f"step 2: update_critic ran out of memory at {failed} tokens; {now} from now on, the "
        "step's result is unchanged",
        "step 4: out of memory in evaluate: 2 -> 1 responses at a time, nothing was lost",
    ]
    assert [row.get("memory/oom/update_critic") for row in rows] == [None, 0, 1, 0, 0]
    assert [row.get("memory/oom/gen", 0) for row in rows] == [0, 0, 1, 0, 0]
    assert [row.get("memory/oom/evaluate", 0) for row in rows] == [0, 0, 0, 0, 1]
    assert [row["memory/budget_seqs/gen"] for row in rows] == [8, 8, 2, 2, 1]
    for row, expected in zip(comparable(runs["injured"]), comparable(runs["whole"]), strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)
    written = {name: rollouts(run)["response"].to_list() for name, run in runs.items()}
    assert written["injured"] == written["whole"]
    weights = {name: load_file(run.path / LATEST) for name, run in runs.items()}
    assert_close(weights["injured"], weights["whole"], atol=1e-6)
    before = load_file(tiny_model_path / "model.safetensors")
    assert max((weights["whole"][name] - before[name]).abs().max() for name in before) > 1e-4
    for phase in ("gen", "evaluate", "update_critic in a run"):
        survived("OOM", phase)
