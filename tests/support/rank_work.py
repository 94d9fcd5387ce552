"""What tests have learner ranks do: functions that a rank's process can import."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from rl_core.batch import TrainBatch
from rl_core.config.algorithm import CriticConfig
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, RankLost
from rl_core.learner import learner as learner_module
from rl_core.learner.learner import Learner
from rl_core.learner.optimizer import ModelOptimizer
from rl_core.learner.ranks import Ranks, reporting_lost_rank
from rl_core.models.sharding import ShardedModel
from rl_core.models.shares import cut_as, whole_tensor
from tests.support.learners import without_timings
from tests.support.memory_faults import out_of_memory

ELSEWHERE = torch.device("cpu", 0)
"""PyTorch copies onto it, as it would onto another device."""


def divide(ranks: Ranks, shapes: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """What this rank keeps of tensors that are cut by rows as FSDP cuts, and of the same whole."""
    mesh = init_device_mesh("cpu", (ranks.size,))
    named = []
    for number, shape in enumerate(shapes):
        tensor = torch.arange(float(math.prod(shape))).reshape(shape) + 1000 * number
        named.append((f"whole {number}", tensor))
        if tensor.ndim:
            cut = distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None)
            named.append((f"cut {number}", cut))
    return {name: whole for name, _, whole in ranks.divide(named) if whole is not None}


def with_ranks(config: RunConfig, ranks: Ranks) -> RunConfig:
    resources = config.resources.model_copy(update={"learner_ranks": ranks.size})
    return RunConfig.model_validate(config.model_copy(update={"resources": resources}).model_dump())


def learn(
    ranks: Ranks,
    configs: Sequence[RunConfig],
    model: Path,
    batches: Sequence[TrainBatch],
    num_steps: int = 2,
) -> list[dict[str, Any]]:
    """Learns from the batches anew for each config; returns what is to be compared."""
    torch.set_num_threads(1)
    results = []
    for config, batch in zip(configs, batches, strict=True):
        learner = offloading(ELSEWHERE, with_ranks(config, ranks), model, ranks)
        gradients = whole_gradients(learner, ranks, batch)
        told = [learner.learn(batch) for _ in range(num_steps)]
        weights = {n: x.clone() for n, x in learner.weights().items()}
        check_one_by_one(learner, weights)
        results.append(
            {
                "gradients": gradients,
                "metrics": [without_timings(metrics) for metrics, _ in told],
                "columns": [columns for _, columns in told],
                "weights": weights | trained_weights(learner),
            }
        )
    return results


def offloading(place: torch.device, config: RunConfig, model: Path, ranks: Ranks) -> Learner:
    """A learner on the CPU that offloads to a place, if its settings need that, as a card does."""
    with pytest.MonkeyPatch.context() as patch:
        at = place if config.resources.offload else None
        patch.setattr(learner_module, "offload_device", lambda *_: at)
        return Learner(config, model, ranks=ranks)


def check_one_by_one(learner: Learner, weights: dict[str, Tensor]) -> None:
    """Tensor by tensor the weights are what they are at once, in the same order."""
    for (name, tensor), expected in zip(learner.each_weight(), weights, strict=True):
        assert name == expected
        assert torch.equal(tensor, weights[name]), name


def whole_gradients(learner: Learner, ranks: Ranks, batch: TrainBatch) -> dict[str, Tensor]:
    """The gradients of a mini-batch holding the whole batch; nothing moves."""
    experience, _ = learner.make_experience(batch)
    gradients = {}
    for name in learner.updater.learners(actor_learns=True):
        _, per_token = learner.microbatching.run(
            "update",
            batch,
            partial(learner.updater.accumulate, name, experience, kl_coef=0.1),
        )
        if experience.values is None and name == "critic":
            values = ranks.add(per_token)
            experience = experience.with_advantages(values, learner.config.algorithm)
        for weight, parameter in learner.optimizers[name].model.named_parameters():
            if parameter.grad is not None:
                gradients[f"{name}.{weight}"] = whole_tensor(parameter.grad).clone()
                parameter.grad = None
    return gradients


def trained_weights(learner: Learner) -> dict[str, Tensor]:
    """All that an optimizer moves, adapters and the critic's included."""
    return {
        f"{name}.{weight}": whole_tensor(tensor).clone()
        for name, optimizer in learner.optimizers.items()
        for weight, tensor in optimizer.weight_tensors().items()
    }


CUT_SHAPES = {
    "rows of blocks": (12, 1_024),
    "one row": (1, 8_192),
    "blocks of eight rows": (128, 96),
    "blocks of four rows, cut within one": (66, 64),
    "too small": (7, 3),
}


class Weights(nn.Module):
    """Parameters of these shapes, random but the same each time."""

    def __init__(self) -> None:
        super().__init__()
        data = torch.Generator().manual_seed(0)
        for name, shape in CUT_SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=data)))


def step_8bit(
    ranks: Ranks, gradients: Sequence[dict[str, Tensor]], begun: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Weights and moments, whole, after steps along whole gradients, begun anew or continued."""
    module = Weights()
    if not ranks.is_alone:
        ShardedModel(module, init_device_mesh("cpu", (ranks.size,)), set())
    optimizer = ModelOptimizer(
        module,
        CriticConfig(lr=0.01, weight_decay=0.1, grad_clip=1e6),
        warmup_steps=0,
        num_steps=0,
        kind="adamw_8bit",
    )
    with torch.no_grad():
        if begun is not None:
            for name, weight in optimizer.weight_tensors().items():
                weight.copy_(cut_as(weight, begun[f"weights.{name}"]))
            optimizer.restore("moments", begun, begun["schedule"])
        for gradient in gradients:
            for name, parameter in module.named_parameters():
                parameter.grad = cut_as(parameter, gradient[name.removeprefix("module.")])
            optimizer.step(optimizer.clip())
        saved = {f"weights.{name}": x for name, x in optimizer.weight_tensors().items()}
        saved |= optimizer.state_tensors("moments")
        whole = {name: whole_tensor(tensor).clone() for name, tensor in saved.items()}
    return {**whole, "schedule": optimizer.schedule_state()}


def go_on_with_8bit(
    ranks: Ranks, gradients: Sequence[dict[str, Tensor]], early: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """What `step_8bit` returns for all gradients, for the first three, and for the rest.

    Begun by these ranks (`again`), or by another number of them (`continued`).
    """
    torch.set_num_threads(1)
    begun = step_8bit(ranks, gradients[:3])
    return {
        "calm": step_8bit(ranks, gradients),
        "begun": begun,
        "again": step_8bit(ranks, gradients[3:], begun),
        "continued": step_8bit(ranks, gradients[3:], early),
    }


def go_on(
    ranks: Ranks,
    config: RunConfig,
    model: Path,
    batches: Sequence[TrainBatch],
    *,
    resume_from: Path | None = None,
    save_to: Path | None = None,
) -> list[dict[str, float]]:
    """Learns from each batch once, saves, and returns the steps' metrics."""
    torch.set_num_threads(1)
    learner = Learner(with_ranks(config, ranks), model, resume_from, ranks=ranks)
    metrics = [learner.learn(batch)[0] for batch in batches]
    learner.snapshot()
    if save_to is not None:
        learner.write_snapshot(save_to)
    return metrics


def run_out_of_memory(ranks: Ranks, config: RunConfig, model: Path, batch: TrainBatch) -> str:
    """What a rank says of a step in which the second has no memory for its first backward pass."""
    torch.set_num_threads(1)
    learner = Learner(with_ranks(config, ranks), model, ranks=ranks)
    fails = out_of_memory(learner, "update_actor", {0} if ranks.rank == 1 else {}, backward=True)
    try:
        with fails, reporting_lost_rank(ranks):
            learner.learn(batch)
    except (OutOfMemory, RankLost) as error:
        return str(error)
    finally:
        distributed.destroy_process_group()  # as a process that ends
    return "learned"
