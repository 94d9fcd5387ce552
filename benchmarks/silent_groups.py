"""CPU seconds of a learner's step on SmolLM2-135M, by the share of groups without spread.

    .venv/bin/python benchmarks/silent_groups.py        (after `make smollm2`)

12 groups of 8 responses of 3 to 16 tokens, prompts of 45 to 59, random token ids; each share is
timed with a backward pass over all groups, and over only those that have an advantage.
"""

from __future__ import annotations

import time
from statistics import median
from unittest.mock import patch

import numpy as np
import torch

from flows.settings.compose import compose
from rl_core.batch import TrainBatch, collate
from rl_core.data.gguf_source import unpack_model
from rl_core.learner.learner import Learner
from rl_core.learner.update import Updater
from rl_core.types import Completion, Problem, Rollout, ScoredText

_GROUPS, _SIZE, _REPEATS = 12, 8, 3


def make_batch(rng: np.random.Generator, silent: int) -> TrainBatch:
    """Returns a step's rollouts; in `silent` groups all responses are right, else every second."""
    rollouts = []
    for group in range(_GROUPS):
        prompt = tuple(rng.integers(100, 40_000, int(rng.integers(45, 60))).tolist())
        for sample in range(_SIZE):
            ids = rng.integers(100, 40_000, int(rng.integers(3, 17)))
            is_right = group < silent or sample % 2 == 1
            rollouts.append(
                Rollout(
                    problem=Problem(group, "benchmark", (), {}, 0),
                    group_id=group,
                    sample_index=sample,
                    prompt_text="",
                    prompt_ids=prompt,
                    completion=Completion(ids, np.full(len(ids), -10, np.float32), "stop"),
                    response_text="",
                    scored=ScoredText(
                        float(is_right), "correct" if is_right else "wrong_value", None
                    ),
                )
            )
    return collate(rollouts, pad_id=0)


def main() -> None:
    """Prints the table."""
    config = compose(["preset=smollm2-laptop"])
    learner = Learner(config, unpack_model(str(config.model.path), config.storage.root / "models"))
    rng = np.random.default_rng(0)

    def seconds(silent: int) -> float:
        batch = make_batch(rng, silent)
        start = time.process_time()
        learner.learn(batch)
        return time.process_time() - start

    def of_all(updater: Updater, names: object, mini: object) -> torch.Tensor:
        return torch.ones(_GROUPS * _SIZE, dtype=torch.bool)

    seconds(0)  # the first makes AdamW's moments
    print("| groups without spread | backward pass over all | over those that teach |")
    print("|---|---|---|")
    for silent in (0, 3, 6, 9, 11):
        ours = median(seconds(silent) for _ in range(_REPEATS))
        with patch.object(Updater, "teaches", of_all):
            over_all = median(seconds(silent) for _ in range(_REPEATS))
        print(f"| {silent / _GROUPS:.2f} | {over_all:.1f} | {ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
