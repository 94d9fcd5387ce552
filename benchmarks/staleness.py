"""Steps per hour by `rollout.staleness`: the real loop, with an engine and a learner that sleep.

python benchmarks/staleness.py [--steps 60]

A response takes a time per token, all of a step at the same time as in one engine, with lengths
from a lognormal distribution; learning a step takes a time from another one. Both sleep instead of
computing, so that the speed of this machine does not matter. Seconds are divided by a scale, and
those of the table are multiplied by it again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_core.config.run import RunConfig
from rl_core.data.sampling import Place, ProblemOrder
from rl_core.rewards.scoring import start_rewards
from rl_core.runs.run_folder import RunFolder
from rl_core.trainer import Trainer, TrainInputs
from rl_core.types import (
    Completion,
    GenerationRequest,
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
)

_SCALE = 200.0
"""Simulated seconds per second of the clock."""
_TICK_TOKENS = 16
_BATCH, _MOST_TOKENS = 16, 1_024
_STALENESS = (0, 1)
_SYNC_S = 1.0


@dataclass(frozen=True)
class Case:
    """Mean simulated seconds of a step's generation and learning; both vary by a half."""

    name: str
    generate_s: float
    learn_s: float


CASES = (
    Case("balanced", 60, 60),
    Case("slow learner", 40, 80),
    Case("slow engine", 80, 40),
)


class SleepingWorkers:
    """Engines and a learner that only sleep for the time of their work."""

    def __init__(self, case: Case) -> None:
        self.engines = self
        self._case = case
        self._policy_version = 0
        self._lengths, self._learning = np.random.default_rng(0), np.random.default_rng(1)
        longest = [self._draw_lengths().max() for _ in range(1_000)]
        self._token_s = case.generate_s / float(np.mean(longest))
        self._lengths = np.random.default_rng(0)

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str = "gen"
    ) -> Iterator[tuple[int, Completion]]:
        """Yields a completion when its length is reached."""
        lengths = np.ones(len(requests), int) if phase == "evaluate" else self._draw_lengths()
        version, begun, tokens = self._policy_version, time.perf_counter(), 0
        waiting = dict(enumerate(lengths.tolist()))
        while waiting:
            tokens += _TICK_TOKENS
            _sleep_until(begun + tokens * self._token_s / _SCALE)
            for position in [i for i, length in waiting.items() if length <= tokens]:
                length = waiting.pop(position)
                logprobs = np.zeros(length, np.float32)
                yield position, Completion(np.zeros(length, np.int64), logprobs, "stop", version)

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Takes a step's time."""
        seconds = self._case.learn_s * self._learning.lognormal(-0.125, 0.5) / _SCALE
        _sleep_until(time.perf_counter() + seconds)
        return {"rollout/logprob_gap_mean": 0.0}, {}

    def sync_weights(self, policy_version: int) -> None:
        """Takes a moment."""
        _sleep_until(time.perf_counter() + _SYNC_S / _SCALE)
        self._policy_version = policy_version

    def end_step(self) -> dict[str, float]:
        """Returns no metrics."""
        return {}

    def snapshot(self) -> None:
        """Nothing to save."""

    def write(self, step: int, accuracy: float | None) -> None:
        """Nothing to save."""

    def _draw_lengths(self) -> Any:
        drawn = self._lengths.lognormal(5.0, 0.7, _BATCH)
        return np.clip(drawn, 1, _MOST_TOKENS).astype(int)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def measure(case: Case, staleness: int, steps: int, root: Path) -> dict[str, float]:
    """Returns a run's simulated steps per hour, and its mean and highest staleness."""
    config = RunConfig.model_validate(
        {
            "run_id": f"{case.name.replace(' ', '-')}-{staleness}",
            "storage": {"root": root},
            "data": {"train_batch_size": _BATCH, "max_response_length": _MOST_TOKENS},
            "actor": {"mini_batch_size": _BATCH},
            "rollout": {"staleness": staleness},
            "trainer": {
                "total_steps": steps,
                "save_freq": steps,
                "test_freq": steps,
                "test_problems": 1,
            },
        }
    )
    problems = [
        PromptedProblem(
            Problem(i, "countdown", (), {"target": 10, "numbers": [1, 2, 7]}, 1), "", (1,)
        )
        for i in range(_BATCH * steps)
    ]
    run, workers = RunFolder.create(config), SleepingWorkers(case)
    inputs = TrainInputs(problems, problems[:1], lambda ids: "", lambda text: [])
    with start_rewards(config.env, config.reward) as rewards:
        order = ProblemOrder(Place(config.seed, len(inputs.train)), config.data.train_batch_size)
        trainer = Trainer(config, inputs, workers, rewards, run, workers, order)  # type: ignore[arg-type]  # they stand in
        begun = time.perf_counter()
        trainer.train(0)
        seconds = (time.perf_counter() - begun) * _SCALE
    rows = run.metrics.read()[1:]
    stale = [row.get("rollout/staleness_mean", 0.0) for row in rows]
    return {
        "steps_per_hour": 3_600 * steps / seconds,
        "staleness_mean": float(np.mean(stale)),
        "staleness_max": max(row.get("rollout/staleness_max", 0) for row in rows),
    }


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    print("| case | K | steps per hour | of K = 0 | staleness, mean | max |")  # its output
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for case in CASES:
            least = 0.0
            for staleness in _STALENESS:
                seen = measure(case, staleness, steps, Path(root))
                rate = seen["steps_per_hour"]
                least = least or rate
                print(
                    f"| {case.name} | {staleness} | {rate:.1f} | {rate / least:.2f} "
                    f"| {seen['staleness_mean']:.2f} | {seen['staleness_max']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
