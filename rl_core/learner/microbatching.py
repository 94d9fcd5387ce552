"""Passes over a batch that run out of memory are run again, in smaller micro-batches.

A micro-batch is only what is computed at a time: whatever the split, the sums are equal up to
rounding. So if one does not fit, only its pass is lost, not the step or the run; with several
ranks the attempt ends with OutOfMemory, as the other ranks wait for this one.
"""

import gc
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from rl_core.batch import TrainBatch, balanced_rows, micro_batches
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, allocation_in_words, is_out_of_memory
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.models.shared_prefix import can_share_prompts
from rl_core.resources.oom_recovery import nothing_smaller
from rl_core.resources.token_budgets import TokenBudgets
from rl_core.system.threads import MicroBatchThreads

Result = TypeVar("Result")


def in_rows(parts: Iterable[tuple[Tensor, Tensor]], like: Tensor) -> Tensor:
    """Returns (rows, [b, T] of them) as one tensor shaped [B, T] as `like`, 0 in all other rows.

    Parts may have more dimensions, [b, T, H].
    """
    parts = list(parts)
    first = parts[0][1]
    whole = torch.zeros(*like.shape, *first.shape[2:], dtype=first.dtype, device=like.device)
    for rows, part in parts:
        whole[rows.to(like.device), : part.shape[1]] = part
    return whole


class Microbatching:
    """Splits batches by the budgets of their phases, and keeps what it learns about these.

    Micro-batches are computed on its `threads`, each rank's own rows; `budgets` are those of the
    phases. `model` is the actor as it is trained.
    """

    def __init__(
        self, config: RunConfig, model: Any, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self._config = config
        self.device = device
        self.ranks = ranks
        self._share_prompts = can_share_prompts(model)
        # Passes of several ranks wait for each other, so they run in one order.
        side_by_side = device.type == "cpu" and ranks.is_alone
        self.threads = MicroBatchThreads(config.resources.learner_threads if side_by_side else 1)
        self.budgets = TokenBudgets(config.actor.micro_batch_tokens)

    def run(
        self,
        phase: str,
        batch: TrainBatch,
        attempt: Callable[[list[Tensor]], Result],
        apart: Tensor | None = None,
    ) -> Result:
        """Returns `attempt(rows of each micro-batch, int64 [b])`, again until it fits.

        The batch is split between ranks and then, by the phase's budget, into micro-batches. An
        attempt must work whatever a failed one has left behind. Rows `apart` (bool [B]) share no
        micro-batch with others, and come last.

        Raises:
            OutOfMemory: every micro-batch was a single row already, or there are several ranks.
        """
        while True:
            parts = self._split(phase, batch, apart)
            try:
                return attempt([rows for rows, _ in parts])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                message = allocation_in_words(error).rstrip(".")
            # The error is gone by now, and with it the frames that held the pass's tensors.
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            sizes = [size for rows, size in parts if len(rows) > 1]
            if not sizes:
                longest = max(size for _, size in parts)
                rows = f"Every micro-batch is a single row already, the longest of {longest} tokens"
                raise nothing_smaller(self._config, phase, f"{message}. {rows}")
            if not self.ranks.is_alone:  # the others wait for this one within the pass
                rank = f"rank {self.ranks.rank} of {self.ranks.size}"
                largest = f"a micro-batch of {max(sizes)} tokens"
                raise OutOfMemory(phase, f"{message}: {largest} on {rank}")
            self.budgets.shrink(phase, max(sizes))

    def _split(
        self, phase: str, batch: TrainBatch, apart: Tensor | None
    ) -> list[tuple[Tensor, int]]:
        """Returns the rows of this rank's micro-batches, each with its padded tokens."""
        rows = balanced_rows(batch, self.ranks.size)[self.ranks.rank]
        kinds = [rows]
        if apart is not None:
            is_apart = apart.cpu()[rows]
            kinds = [kind for kind in (rows[~is_apart], rows[is_apart]) if len(kind)]
        budget = self.budgets[phase]
        return [
            (kind[some], size)
            for kind in kinds
            for some, size in micro_batches(
                batch.select(kind), budget, share_prompts=self._share_prompts
            )
        ]
