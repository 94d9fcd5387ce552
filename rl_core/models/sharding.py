"""A model in shards, one per learner rank: torch's FSDP2, layer by layer.

Each rank keeps its share of every weight, as a DTensor cut along the first dimension, and what
belongs to it: gradient and AdamW's moments. FSDP's hooks gather a layer's weights for its part of a
forward or backward pass, and add up its gradient at the end of the latter. So all ranks must do the
same passes, in the same order: one that leaves a pass early leaves the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from rl_core.batch import TrainBatch
from rl_core.models.forward import ForwardPass, TokenOutputs
from rl_core.models.loading import Models
from rl_core.models.shares import mesh_of_all

Result = TypeVar("Result")


class ShardedModel(nn.Module):
    """A model of whose weights each rank has a share, and the root of FSDP's hooks.

    The given model is whole and the same on all ranks; its weights become DTensors in place. Those
    that `stay_whole`, and adapters, are shared by all models. If it `offloads`, shards are in
    the machine's memory, and only gathered weights on the device.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: DeviceMesh,
        stay_whole: set[nn.Parameter],
        *,
        offloads: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        policy = OffloadPolicy()
        if offloads:
            policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        blocks = [m for m in self.modules() if isinstance(m, GradientCheckpointingLayer)]
        for part in (*blocks, self):
            unit = fully_shard(part, mesh=mesh, ignored_params=stay_whole, offload_policy=policy)
            # Shares of a loss are added up; by default FSDP takes the ranks' mean.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(enable=True)

    def forward(self, run: Callable[[], Result]) -> Result:
        """Returns `run()`, a pass of the model: weights outside of layers are whole in it."""
        return run()


def shard(models: Models, device: torch.device, *, offloads: bool) -> dict[nn.Module, ShardedModel]:
    """Cuts all weights into a share for each rank; returns the root of each model that is cut.

    With adapters the frozen weights stay whole: all models share them, and a reference is the actor
    without adapters. The models must be the same on all ranks, and have no optimizers yet. Models
    on the CPU go to the device a layer at a time, as they are cut. If it `offloads`, the
    shares of reference and teacher are in the machine's memory.
    """
    mesh = mesh_of_all(device.type)
    actor = models.actor
    reference = models.reference
    critic = models.critic
    still = {weight for weight in actor.parameters() if not weight.requires_grad}
    for weight in still:
        weight.data = weight.data.to(device)
    roots: dict[nn.Module, ShardedModel] = {actor: ShardedModel(actor, mesh, still)}
    if models.teacher is not None:
        roots[models.teacher] = ShardedModel(models.teacher, mesh, set(), offloads=offloads)
    if reference is not None and not still:
        roots[reference] = ShardedModel(reference, mesh, set(), offloads=offloads)
    elif reference is not None:
        reference.to(device)
    if critic is not None:
        roots[critic] = ShardedModel(critic, mesh, still)
    return roots


def sharded_pass(
    roots: Mapping[nn.Module, ShardedModel],
    forward: ForwardPass,
    batch: TrainBatch,
    **models: Any,
) -> TokenOutputs:
    """Returns `forward(batch, **models)`, computed by all ranks with weights of `shard`."""
    root = next((root for model, root in roots.items() if model in models.values()), None)
    if root is None:
        return forward(batch, **models)
    outputs: TokenOutputs = root(partial(forward, batch, **models))
    if not torch.is_grad_enabled():
        # Else FSDP keeps the root's weights, and a list of all passes until one has a backward.
        cast("FSDPModule", root).reset_iter_state()
    return outputs
