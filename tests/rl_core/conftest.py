"""Hand-made rollouts, for which no engine is needed, and a disk that is soon full."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import huggingface_hub.constants
import numpy as np
import pytest

from rl_core.config.run import RunConfig
from rl_core.types import Completion, Problem, Rollout, ScoredText
from tests.support.faults import mounted_small_disk
from tests.support.runs import merged, run_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rl_core.batch import TrainBatch
    from rl_core.learner.learner import Learner

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
            if row % group_size == 0:
                prompt_ids = rng.integers(2, 258, int(rng.integers(1, 7))).tolist()
            rollouts.append(
                _make_rollout(
                    prompt_ids,
                    rng.integers(2, 258, length).tolist(),
                    logprobs=rng.uniform(-8, -3, length).tolist(),
                    score=1.0 if correct else float(rng.choice([0.0, 0.1])),
                    verdict="correct" if correct else "wrong_value",
                    group_id=row // group_size,
                )
            )
        return rollouts

    return make


@pytest.fixture(scope="session")
def make_batch(random_rollouts: Callable[..., list[Rollout]]) -> Callable[..., TrainBatch]:
    """`make_batch(seed, pad_id=, group_size=)`: 8 random rollouts as a batch."""
    from rl_core.batch import collate  # here, so that tests without tensors load no torch

    def make(seed: int = 0, *, pad_id: int = 0, group_size: int = 1) -> TrainBatch:
        return collate(random_rollouts(8, group_size=group_size, seed=seed), pad_id)

    return make


@pytest.fixture
def two_responses(make_rollout: MakeRollout) -> TrainBatch:
    from rl_core.batch import collate

    rollouts = [
        make_rollout([1, 2], [3, 4], logprobs=[-1.1, -2.0], score=1.0, verdict="correct"),
        make_rollout([1], [5], logprobs=[-2.0], score=0.1, group_id=1, finish_reason="length"),
    ]
    return collate(rollouts, pad_id=0)


def _small_settings(**sections: dict[str, Any]) -> RunConfig:
    """Small settings: 8 prompts per step in two mini-batches, micro-batches of 32 padded tokens."""
    defaults = {
        "data": {"train_batch_size": 8},
        "actor": {"mini_batch_size": 4, "micro_batch_tokens": 32, "lr": 1e-3},
        "critic": {"lr": 1e-3},
        "algorithm": {"kl_coef": 0.05},
    }
    return run_config(**merged(defaults, sections))


@pytest.fixture(scope="session")
def settings() -> Callable[..., RunConfig]:
    return _small_settings


@pytest.fixture
def new_learner(tiny_model_path: Path) -> Callable[..., Learner]:
    """`new_learner(resume_from=, actor={...}, ...)`: of the tiny model, with small settings."""
    from rl_core.learner.learner import Learner  # here: it loads torch

    def make(resume_from: Path | None = None, **sections: dict[str, Any]) -> Learner:
        return Learner(_small_settings(**sections), tiny_model_path, resume_from=resume_from)

    return make


@pytest.fixture(scope="session")
def actor(tiny_model_path: Path) -> PreTrainedModel:
    """The tiny model as a learner loads it: read only, please."""
    import torch

    from rl_core.models.loading import load_actor

    return load_actor(tiny_model_path, torch.device("cpu"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path) as folder:
        yield folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, in which the real loading code looks; the suite runs offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"
