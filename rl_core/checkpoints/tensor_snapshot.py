"""A SNAPSHOT: tensors copied into memory of their own, so that training can continue meanwhile."""

from collections.abc import Mapping
from threading import Lock
from typing import Final

import torch
from torch import Tensor

from rl_core.system.threads import MicroBatchThreads

_BLOCK: Final = 2**22
"""Elements copied at a time: one embedding can be a third of a model."""
_PARTS: Final = 8
"""Parts of a copy: if one thread is held up, the others do its work."""
_BYTES_BESIDE: Final = 2**16
"""Config, schedules, manifest and what a file system adds to each of a dozen files."""
_BYTES_PER_TENSOR: Final = 256
"""Its name, type and place in a safetensors header."""


def bytes_to_write(tensors: Mapping[str, Tensor], *, beside: int) -> int:
    """Returns the most bytes that a checkpoint of these tensors takes of the disk.

    Tied tensors count twice; `beside` are bytes of the tokenizer's files.
    """
    written = sum(t.nbytes + _BYTES_PER_TENSOR + len(name) for name, t in tensors.items())
    return written + beside + _BYTES_BESIDE


class SnapshotMemory:
    """CPU memory for copies of named tensors, pinned for tensors of a GPU.

    It is reused for each copy: page faults of fresh memory take several times as long as copying.
    Without `copies` a snapshot is the tensors themselves, to be written before they change.
    """

    def __init__(self, threads: MicroBatchThreads, *, copies: bool = True) -> None:
        self._threads = threads
        self._makes_copies = copies
        self._copies: dict[str, Tensor] = {}
        self._lock = Lock()

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocates the memory for copies and takes its page faults now; tensors are not read."""
        if not self._makes_copies:
            return
        with self._lock:
            for name, tensor in tensors.items():
                self._memory_for(name, tensor).zero_()

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns contiguous copies on the CPU; those returned before are overwritten.

        A name's shape and dtype must never change.
        """
        if not self._makes_copies:
            return dict(tensors)
        with self._lock:
            copies = {name: self._memory_for(name, tensor) for name, tensor in tensors.items()}
        blocks = [
            pair
            for name, tensor in tensors.items()
            for pair in zip(
                torch.split(copies[name].view(-1), _BLOCK),
                torch.split(tensor.reshape(-1), _BLOCK),
                strict=True,
            )
        ]

        def copy_part(part: int) -> None:
            for target, source in blocks[part::_PARTS]:
                target.copy_(source, non_blocking=True)

        list(self._threads.map(copy_part, range(_PARTS)))
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return copies

    def _memory_for(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._copies:
            self._copies[name] = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
            )
        return self._copies[name]
