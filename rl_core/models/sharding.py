"""A model cut into shards, one per learner rank, and gathered for a pass (FSDP2's storage).

Each rank keeps its share of every weight, as a DTensor cut along the first dimension, and what
belongs to it: gradient and AdamW's moments. For a pass the weights are gathered whole, block by
block, and given back after it. FSDP's hooks would gather a block within forward and backward
instead; here they never run, so no collective hides in a pass, and ranks may differ in all that
they do between two of ours: in number and shape of micro-batches, in threads, in passes done again.
It costs memory: during a pass, the whole weights and the whole gradient of what learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from transformers.modeling_layers import GradientCheckpointingLayer


class _Unit(nn.Module):
    """Weights that are gathered by one collective; never called, see above."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class ShardedModel:
    """A module whose weights lie on all ranks, a share each.

    Args:
        module: whole, and the same on all ranks; its weights become DTensors in place.
        mesh: the ranks.
        stay_whole: weights that are not cut: those beside adapters, which all models share.
        offloads: the shards lie in the machine's memory, and are on the device while they are
            gathered alone.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        stay_whole: set[nn.Parameter],
        *,
        offloads: bool = False,
    ) -> None:
        self.module = module
        self._units: list[FSDPModule] = []
        policy = OffloadPolicy()
        if offloads:
            policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
        done = set(stay_whole)
        blocks = [m for m in module.modules() if isinstance(m, GradientCheckpointingLayer)]
        for part in (*blocks, module):
            if all(weight in done for weight in part.parameters()):
                continue
            unit = fully_shard(
                _Unit(part), mesh=mesh, ignored_params=set(done), offload_policy=policy
            )
            done.update(part.parameters())  # those that this has put in place of the whole ones
            self._units.append(unit)

    def gather(self) -> None:
        """Has the module hold whole weights; a collective."""
        for unit in self._units:
            unit.unshard()

    def give_back(self) -> None:
        """Has the module hold its shards again; no collective."""
        for unit in self._units:
            unit.reshard()


@contextmanager
def gathered(models: Sequence[ShardedModel], *, learns: bool) -> Iterator[None]:
    """Has the models whole within the block, which all ranks must enter.

    Args:
        models: none shares a weight that is cut with another.
        learns: at the end of the block, all ranks' gradients are added up, and each keeps its share
            as the gradient of its shards. Not if the block raises: then nothing is sent.
    """
    shards = [weight for model in models for weight in _learning(model)]
    try:
        for model in models:
            model.gather()
        yield
        if learns:
            add_gradients(shards, [weight for model in models for weight in _learning(model)])
    finally:
        for model in models:
            model.give_back()


def _learning(model: ShardedModel) -> list[nn.Parameter]:
    return [weight for weight in model.module.parameters() if weight.requires_grad]


def add_gradients(shards: Sequence[nn.Parameter], whole: Sequence[nn.Parameter]) -> None:
    """Sets each shard's gradient to its share of all ranks' sum, and clears the whole ones.

    A weight that no rank has a gradient of has none afterwards either.

    Args:
        shards: DTensors.
        whole: the same weights in the same order, gathered.
    """
    has_one, device = [weight.grad is not None for weight in whole], whole[0].device
    exists = torch.tensor(has_one, dtype=torch.float32, device=device)
    mesh = shards[0].device_mesh  # type: ignore[attr-defined]  # a parameter that is a DTensor
    distributed.all_reduce(exists, group=mesh.get_group())
    for shard, weight, is_wanted in zip(shards, whole, exists.tolist(), strict=True):
        if not is_wanted:
            continue
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = None
        parts = DTensor.from_local(own, mesh, [Partial("sum")], run_check=False)
        shard.grad = parts.redistribute(placements=_placements(shard))


def whole_tensor(tensor: Tensor) -> Tensor:
    """Returns a tensor that all ranks hold; of one that is cut, gathered by a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_in(rank: int, tensor: Tensor) -> Tensor | None:
    """Returns a tensor that all ranks hold, in one of them: None in the others; a collective.

    Each shard goes to that rank alone, where `whole_tensor` sends it to all.
    """
    if not isinstance(tensor, DTensor):
        return tensor if distributed.get_rank() == rank else None
    shard = tensor.to_local()
    if distributed.get_rank() != rank:
        if shard.numel():
            distributed.send(shard.contiguous(), rank)
        return None
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=shard.device)
    # As FSDP cuts: a tensor with fewer rows than there are ranks leaves the last ones none.
    for source, part in enumerate(whole.chunk(tensor.device_mesh.size())):
        if source == rank:
            part.copy_(shard)
        else:
            distributed.recv(part, source)
    return whole


def cut_as(like: Tensor, tensor: Tensor) -> Tensor:
    """Returns this rank's share of a whole tensor, cut as another is; no collective.

    Args:
        like: a DTensor, or a tensor that is not cut: then so is the result.
        tensor: of the same shape, the same on all ranks.
    """
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, _placements(like), src_data_rank=None)


def own_share(parameter: nn.Parameter) -> nn.Parameter:
    """Returns what an optimizer steps of a parameter: where it is cut, this rank's part alone."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(own_part(parameter.detach()))


def own_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that is cut, in the same memory; else the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_shares(part: Tensor, like: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns this rank's part of a tensor as such, so that all ranks' parts can be joined.

    Args:
        part: of it.
        like: cut as it is, maybe on another device; where it is not cut, `part` is returned.
        shape: of the whole.
    """
    if not isinstance(like, DTensor):
        return part
    part = part.reshape(-1, *shape[1:])
    whole = torch.empty(shape, device="meta")
    mesh = like.device_mesh
    if part.device.type not in (mesh.device_type, "meta"):  # else all would come to the card
        mesh = _mesh_of_all(part.device.type)
    return DTensor.from_local(
        part,
        mesh,
        like.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


@cache
def _mesh_of_all(device_type: str) -> DeviceMesh:
    return init_device_mesh(device_type, (distributed.get_world_size(),))


def _placements(tensor: Tensor) -> Sequence[Placement]:
    assert isinstance(tensor, DTensor), "a tensor that is not cut has no placements"
    return tensor.placements


def repeated_names(module: nn.Module) -> set[str]:
    """Returns the names under which a weight stands again: tied ones, all but the first."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return every - {name for name, _ in module.named_parameters()}
