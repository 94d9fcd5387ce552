"""Two responses with round numbers, from which experience can be computed by hand."""

from typing import Any

import torch
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.config.algorithm import AlgorithmConfig
from rl_core.config.run import DataConfig, RunConfig
from rl_core.learner.experience import Experience, assemble

OLD = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
REF = torch.tensor([[-1.5, -1.0, 0.0], [-5.0, 0.0, 0.0]])
VALUES = torch.tensor([[0.5, 0.25, 0.0], [1.0, 0.0, 0.0]])


def experience_of(
    batch: TrainBatch,
    *,
    old: Tensor = OLD,
    ref: Tensor | None = REF,
    values: Tensor | None = VALUES,
    max_response_length: int = 1_024,
    **algorithm: Any,
) -> Experience:
    # Unchecked as a whole: not every pair of settings in these tests may run.
    config = RunConfig().model_copy(
        update={
            "algorithm": AlgorithmConfig.model_validate(algorithm),
            "data": DataConfig(max_response_length=max_response_length),
        }
    )
    width = batch.rollout_logprobs.shape[1]
    return assemble(
        batch,
        old_logprobs=old[:, :width],
        ref_logprobs=None if ref is None else ref[:, :width],
        values=None if values is None else values[:, :width],
        config=config,
        kl_coef=0.1,
    )
