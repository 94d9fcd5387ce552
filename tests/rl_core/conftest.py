"""Hand-made rollouts: no engine is needed to test what comes after one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest

from rl_core.types import Completion, Problem, Rollout, ScoredText

MakeRollout = Callable[..., Rollout]


def _make_rollout(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    score: float = 0.0,
    verdict: str = "wrong_value",
    group_id: int = 0,
    finish_reason: Literal["stop", "length"] = "stop",
) -> Rollout:
    if logprobs is None:
        logprobs = [-1.0] * len(response_ids)
    return Rollout(
        problem=Problem(group_id, "countdown", (), {}, 0),
        group_id=group_id,
        sample_index=0,
        prompt_text="",
        prompt_ids=tuple(prompt_ids),
        completion=Completion(
            np.array(response_ids, dtype=np.int64),
            np.array(logprobs, dtype=np.float32),
            finish_reason,
        ),
        response_text="",
        scored=ScoredText(score, verdict, None),
    )


@pytest.fixture(scope="session")
def make_rollout() -> MakeRollout:
    return _make_rollout


@pytest.fixture(scope="session")
def random_rollouts() -> Callable[..., list[Rollout]]:
    """`random_rollouts(number, group_size=, seed=)`: lengths, tokens and scores at random."""

    def make(number: int, *, group_size: int = 1, seed: int = 0) -> list[Rollout]:
        rng = np.random.default_rng(seed)
        rollouts = []
        for row in range(number):
            correct = bool(rng.random() < 0.4)
            length = int(rng.integers(1, 13))
            rollouts.append(
                _make_rollout(
                    rng.integers(2, 258, int(rng.integers(1, 7))).tolist(),
                    rng.integers(2, 258, length).tolist(),
                    logprobs=rng.uniform(-8, -3, length).tolist(),
                    score=1.0 if correct else float(rng.choice([0.0, 0.1])),
                    verdict="correct" if correct else "wrong_value",
                    group_id=row // group_size,
                )
            )
        return rollouts

    return make
