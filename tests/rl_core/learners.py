"""What tests of the learner compare."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.learner import Learner


def without_timings(metrics: dict[str, float]) -> dict[str, float]:
    return {name: x for name, x in metrics.items() if not name.startswith("timing_s/")}


def all_weights(learner: Learner) -> dict[str, Tensor]:
    weights = {f"actor.{name}": x.clone() for name, x in learner.weights().items()}
    if learner._critic is not None:
        weights |= {f"critic.{k}": x.clone() for k, x in learner._critic.state_dict().items()}
    return weights


def assert_bitwise_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
