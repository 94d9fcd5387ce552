"""The learner's processes (ranks), seen from one of them: its rows, and sums over all ranks.

All ranks hold the whole batch, so each of them computes the step's metrics, from equal numbers.
Only the work of a pass and the weights (sharding.py) are divided. Within a pass FSDP gathers
weights and adds up gradients, so the ranks first agree on the number of passes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from torch import Tensor, distributed
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch exports it so

from rl_core.errors import RankLost, first_line, is_out_of_memory
from rl_core.models.shares import whole_in
from rl_core.system.peers import listening_ports, refuse_strangers_at

_LOST_RANK_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")


class Ranks:
    """One of the learner's processes, counted from 0; if there are several, `meet` returns it.

    By default there is only one, which sends nothing.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_alone(self) -> bool:
        """There is one rank: the learner is one process."""
        return self.size == 1

    def same_passes(
        self, micro_batches: Sequence[Tensor], learns: Sequence[bool]
    ) -> list[tuple[Tensor, bool]]:
        """Returns a rank's passes, as many as all ranks have, and which have gradient on any rank.

        A rank with fewer `micro_batches` (rows, int64 [b] each, at least one) than others repeats
        one of its rows after them: those passes must not count.
        """
        if self.is_alone:
            return list(zip(micro_batches, learns, strict=True))
        # As tensors: torch sends any other object as a pickle.
        most = torch.tensor(len(learns), device="cpu")
        distributed.all_reduce(most, distributed.ReduceOp.MAX)
        of_any = torch.zeros(int(most), dtype=torch.int32, device="cpu")
        of_any[: len(learns)] = torch.tensor(list(learns), dtype=torch.int32, device="cpu")
        distributed.all_reduce(of_any, distributed.ReduceOp.MAX)
        again = [micro_batches[-1][:1]] * (len(of_any) - len(micro_batches))
        return list(zip([*micro_batches, *again], of_any.bool().tolist(), strict=True))

    def add(self, tensor: Tensor) -> Tensor:
        """Returns the tensor, changed in place to all ranks' sum."""
        if not self.is_alone:
            distributed.all_reduce(tensor)
        return tensor

    def add_shares(self, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns all ranks' sums of scalars, which have the same names on each."""
        if self.is_alone:
            return dict(shares)
        sums = self.add(torch.stack([share.float() for share in shares.values()]))
        return dict(zip(shares, sums.unbind(), strict=True))

    def divide(
        self, tensors: Iterable[tuple[str, Tensor]], owner: int | None = None
    ) -> Iterator[tuple[str, int, Tensor | None]]:
        """Yields each tensor's name, the rank that keeps it, and on that rank the whole tensor.

        Without an `owner` of all, the ranks' shares have about the same size. All ranks must
        iterate over the same names; tensors are the same on all ranks, or shards.
        """
        kept = [0] * self.size
        for name, tensor in tensors:
            keeper = kept.index(min(kept)) if owner is None else owner
            kept[keeper] += tensor.nbytes
            yield name, keeper, whole_in(keeper, tensor)


ALONE = Ranks()


def meet(rank: int, size: int, *, place: Path, own_host: str, timeout_s: float) -> Ranks:
    """Waits for all ranks, and returns this one.

    All traffic uses the network interface with the address `own_host`. A rank waits for another at
    most `timeout_s`, which must be longer than the passes of two ranks can differ.

    Args:
        rank: Counted from 0.
        size: The number of ranks.
        place: A file that all ranks see, where it makes no difference which comes first. Its folder
            must be closed to other users: whoever writes to it is one of us. (Torch's usual place
            is a port without a login.)
        own_host: An address of this machine.
        timeout_s: In seconds.
    """
    # Else gloo looks its host's name up, which on many machines leads to no interface at all.
    for name, addresses in psutil.net_if_addrs().items():
        if own_host in {address.address for address in addresses}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    before = listening_ports()
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=FileStore(str(place), size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    refuse_strangers_at(listening_ports() - before)  # gloo has no login either
    return Ranks(rank, size)


@contextmanager
def reporting_lost_rank(ranks: Ranks) -> Iterator[None]:
    """Turns what a collective raises when another rank is gone into `RankLost`."""
    try:
        yield
    except (RuntimeError, distributed.DistError) as error:
        message = str(error).lower()
        is_news = any(words in message for words in _LOST_RANK_WORDS)
        if ranks.is_alone or is_out_of_memory(error) or not is_news:
            raise
        lost = f"rank {ranks.rank} lost another ({first_line(error)})"
        raise RankLost("learner", lost) from error
