"""Weights from the learner to all engines at once: one broadcast per tensor, in place.

A process group beside torch's default one, which the learner's ranks have for themselves. Nobody
holds more than a tensor beside its model: none is copied into buckets. Who loses another closes its
own connections, so that the news reaches all at once; who falls silent is waited for, for a while.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed
from torch.distributed import (  # type: ignore[attr-defined]  # torch exports them so
    PrefixStore,
    TCPStore,
)

from rl_core.errors import SyncBroken, first_line, is_out_of_memory
from rl_core.types import Meeting

_SENDER: Final = 0
_PATIENCE_S: Final = 60.0
"""For whoever is late, or silent: a busy machine may keep a process from its core for long."""
_SLOWEST_LINK: Final = 1e7
"""Bytes per second of a link that is not yet taken for a dead one."""


class WeightChannel:
    """One process of a broadcast; made when all have come to the meeting.

    Args:
        meeting: the same for all.
        rank: 0 for the sender, then the engines' processes.
        device: where the model is.

    Raises:
        SyncBroken: somebody did not come.
    """

    def __init__(self, meeting: Meeting, rank: int, device: torch.device) -> None:
        self._meeting = meeting
        self._dtype: torch.dtype = getattr(torch, meeting.dtype)
        # gloo sends from the machine's memory alone.
        self._device = device if meeting.backend == "nccl" else torch.device("cpu")
        patience = timedelta(seconds=min(_PATIENCE_S, meeting.timeout_s))
        with self._noticing_loss():
            store = TCPStore(meeting.host, meeting.port, wait_for_workers=False, timeout=patience)
            self._group: Any = _make_group(meeting, store, rank, patience)

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sends each tensor to all; all are asked for even if somebody is lost.

        Other ranks gather along: they would wait for one who asks for no more.

        Args:
            weights: names and tensors in the order of the meeting, of any device and float type.

        Raises:
            SyncBroken: somebody is lost: others may hold some of the tensors.
        """
        loss: SyncBroken | None = None
        for (name, tensor), expected in zip(weights, self._meeting.shapes, strict=True):
            assert name == expected, f"{name} comes in the place of {expected}"
            if loss is None:
                try:
                    self.broadcast(tensor.detach().to(self._device, self._dtype).contiguous())
                except SyncBroken as error:
                    loss = error
        if loss is not None:
            raise loss

    def receive(self, into: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yields each tensor that is sent.

        Args:
            into: by name, what receives in place where it can: other tensors are new.

        Raises:
            SyncBroken: somebody is lost.
        """
        has_all = False
        try:
            for name, shape in self._meeting.shapes.items():
                tensor = into.get(name)
                if tensor is None or not self._can_receive(tensor):
                    tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
                self.broadcast(tensor.detach())
                yield name, tensor
            has_all = True
        finally:
            if not has_all:
                self._group = None  # or the others would wait for who asks for no more

    def _can_receive(self, tensor: Tensor) -> bool:
        is_like = (tensor.dtype, tensor.device.type) == (self._dtype, self._device.type)
        return is_like and tensor.is_contiguous()

    def broadcast(self, tensor: Tensor) -> None:
        """Sends a tensor, or has it filled with what is sent.

        Raises:
            SyncBroken: somebody is lost, or silent for too long.
        """
        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = _SENDER, 0
        patience_s = _PATIENCE_S + tensor.nbytes / _SLOWEST_LINK
        options.timeout = timedelta(seconds=min(patience_s, self._meeting.timeout_s))
        with self._noticing_loss():
            if self._group is None:
                raise RuntimeError("it was closed when another was lost")
            self._group.broadcast([tensor], options).wait()

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Turns what a lost process causes into `SyncBroken`, and closes the connections."""
        try:
            yield
        except (RuntimeError, distributed.DistError) as error:
            if is_out_of_memory(error):
                raise
            self._group = None
            raise SyncBroken(f"the broadcast of weights broke off ({first_line(error)})") from None


def open_store(host: str) -> TCPStore:
    """Returns where channels meet, on a free port: kept by the sender as long as it lives."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def _make_group(meeting: Meeting, store: TCPStore, rank: int, patience: timedelta) -> Any:
    """Waits for all, and returns torch's group of them, which torch knows nothing else of."""
    torch_has: Any = distributed  # a build for CPUs alone has no NCCL, and mypy knows no options
    own = PrefixStore(meeting.name, store)
    if meeting.backend == "nccl":
        options = torch_has.ProcessGroupNCCL.Options()
        options._timeout = patience
        return torch_has.ProcessGroupNCCL(own, rank, meeting.size, options)
    options = torch_has.ProcessGroupGloo._Options()
    options._timeout = patience
    # Else gloo looks its host's name up, which on many machines leads to no interface at all.
    address = _own_address(meeting.host, meeting.port)
    options._devices = [torch_has.ProcessGroupGloo.create_device(hostname=address)]
    return torch_has.ProcessGroupGloo(own, rank, meeting.size, options)


def _own_address(host: str, port: int) -> str:
    """Returns the address by which this machine reaches another, or itself; nothing is sent."""
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
