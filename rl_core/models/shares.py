"""The tensors of a model in shards: DTensors cut along the first dimension, a share for each rank.

A tensor that is not cut passes through these functions as it is. The models are cut in sharding.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Returns the whole tensor; if it is sharded, all ranks gather it by a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_in(rank: int, tensor: Tensor) -> Tensor | None:
    """Returns the whole tensor on one rank and None on the others; all ranks must call this.

    Each shard is sent only to that rank; `whole_tensor` sends it to all.
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
    """Returns this rank's share of a tensor that is the same on all ranks; no collective.

    It is cut as `like`, which has the same shape; if `like` is whole, it stays whole.
    """
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def own_share(parameter: nn.Parameter) -> nn.Parameter:
    """Returns the part of a parameter that an optimizer updates; if sharded, only this rank's."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(own_part(parameter.detach()))


def own_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that is cut, in the same memory; else the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_shares(part: Tensor, like: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns this rank's part of a tensor as a DTensor, so that all ranks' parts can be joined.

    `shape` is that of the whole tensor, which is cut as `like` is, maybe on another device; if
    `like` is not cut, `part` is returned.
    """
    if not isinstance(like, DTensor):
        return part
    part = part.reshape(-1, *shape[1:])
    whole = torch.empty(shape, device="meta")
    mesh = like.device_mesh
    if part.device.type not in (mesh.device_type, "meta"):  # else the whole would come to the card
        mesh = mesh_of_all(part.device.type)
    return DTensor.from_local(
        part,
        mesh,
        like.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


@cache
def mesh_of_all(device_type: str) -> DeviceMesh:
    """Returns the mesh of all ranks, of that kind of device."""
    return init_device_mesh(device_type, (distributed.get_world_size(),))
