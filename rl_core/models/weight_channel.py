"""Weights from the learner to all engines at once: one broadcast per tensor, in place.

A process group beside torch's default one, which the learner's ranks have for themselves. Nobody
holds more than a tensor beside its model: none is copied into buckets. Who loses another closes its
own connections, so that the news reaches all at once; who falls silent is waited for, for a while.

NCCL knows no two processes on one card: there each opens the sender's memory by a handle.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._device = torch.device("cpu") if meeting.backend == "gloo" else device
        patience = timedelta(seconds=min(_PATIENCE_S, meeting.timeout_s))
        with self._noticing_loss():
            store = TCPStore(meeting.host, meeting.port, wait_for_workers=False, timeout=patience)
            group = _make_group(meeting, store, rank, patience)
        self._pass_on: Callable[[Tensor, timedelta], None] | None = group

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
                self._pass_on = None  # or the others would wait for who asks for no more

    def _can_receive(self, tensor: Tensor) -> bool:
        is_like = (tensor.dtype, tensor.device.type) == (self._dtype, self._device.type)
        return is_like and tensor.is_contiguous()

    def broadcast(self, tensor: Tensor) -> None:
        """Sends a tensor, or has it filled with what is sent.

        Raises:
            SyncBroken: somebody is lost, or silent for too long.
        """
        patience_s = _PATIENCE_S + tensor.nbytes / _SLOWEST_LINK
        with self._noticing_loss():
            if self._pass_on is None:
                raise RuntimeError("it was closed when another was lost")
            self._pass_on(tensor, timedelta(seconds=min(patience_s, self._meeting.timeout_s)))

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        """Turns what a lost process causes into `SyncBroken`, and closes the connections."""
        try:
            yield
        except (RuntimeError, distributed.DistError) as error:
            if is_out_of_memory(error):
                raise
            self._pass_on = None
            raise SyncBroken(f"the broadcast of weights broke off ({first_line(error)})") from None


def open_store(host: str) -> TCPStore:
    """Returns where channels meet, on a free port: kept by the sender as long as it lives."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def _make_group(
    meeting: Meeting, store: TCPStore, rank: int, patience: timedelta
) -> Callable[[Tensor, timedelta], None]:
    """Waits for all, and returns what passes a tensor on to all within a time."""
    own = PrefixStore(meeting.name, store)
    if meeting.backend == "ipc":
        return _Handles(own, rank, meeting.size, patience)
    group = _process_group(meeting, own, rank, patience)

    def pass_on(tensor: Tensor, within: timedelta) -> None:
        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = _SENDER, 0
        options.timeout = within
        group.broadcast([tensor], options).wait()

    return pass_on


def _process_group(meeting: Meeting, own: PrefixStore, rank: int, patience: timedelta) -> Any:
    """Returns torch's group, which torch knows nothing else of."""
    torch_has: Any = distributed  # a build for CPUs alone has no NCCL, and mypy knows no options
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


class _Handles:
    """The sender's memory, opened by processes on the same card, or on a CPU the same machine.

    A handle travels as JSON through the store: anybody who reaches that could make a process run
    what a pickle says.
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, patience: timedelta) -> None:
        self._store, self._rank, self._turn = store, rank, 0
        self._receivers = range(_SENDER + 1, size)
        store.set(f"here {rank}", "")
        store.wait([f"here {other}" for other in range(size)], patience)

    def __call__(self, tensor: Tensor, within: timedelta) -> None:
        """Passes a tensor on; the sender's may change when all have it."""
        turn, self._turn = f"turn {self._turn}", self._turn + 1
        taken = [f"{turn} taken by {receiver}" for receiver in self._receivers]
        if self._rank == _SENDER:
            _wait_for_card(tensor)
            self._store.set(turn, json.dumps(_handle(tensor)))
            self._store.wait(taken, within)
            for key in (turn, *taken):
                self._store.delete_key(key)
            return
        self._store.wait([turn], within)
        tensor.copy_(_opened(json.loads(self._store.get(turn)), tensor))
        _wait_for_card(tensor)
        self._store.set(taken[self._rank - 1], "")


def _wait_for_card(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _handle(tensor: Tensor) -> list[Any]:
    """Returns what another process opens a contiguous tensor's memory by, and where it begins."""
    storage: Any = tensor.untyped_storage()
    shared = storage._share_cuda_() if tensor.is_cuda else storage._share_filename_cpu_()
    parts = [part.hex() if isinstance(part, bytes) else part for part in shared]
    return [tensor.storage_offset(), parts, [isinstance(part, bytes) for part in shared]]


def _opened(handle: Sequence[Any], like: Tensor) -> Tensor:
    """Returns the tensor of a handle: the sender's memory itself."""
    offset, parts, is_bytes = handle
    shared = [
        bytes.fromhex(part) if was_bytes else part
        for part, was_bytes in zip(parts, is_bytes, strict=True)
    ]
    torch_has: Any = torch.UntypedStorage
    make = torch_has._new_shared_cuda if like.is_cuda else torch_has._new_shared_filename_cpu
    opened = torch.empty(0, dtype=like.dtype, device=like.device)
    return opened.set_(make(*shared), offset, like.shape, like.stride())


def _own_address(host: str, port: int) -> str:
    """Returns the address by which this machine reaches another, or itself; nothing is sent."""
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
