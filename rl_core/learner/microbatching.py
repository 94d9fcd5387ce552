"""Passes over a batch that run out of memory are run again, in smaller micro-batches.

A micro-batch is only what is computed at a time: whatever the split, the sums are equal up to
rounding. So if one does not fit, only its pass is lost, not the step or the run; with several
ranks the attempt ends with OutOfMemory, as the other ranks wait for this one.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from rl_core.batch import TrainBatch, micro_batches, padded_tokens
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

    Micro-batches are computed on its `threads`, each rank's own rows. `model` is the actor as it is
    trained.
    """

    def __init__(
        self, config: RunConfig, model: Any, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self._config, self.device, self._ranks = config, device, ranks
        self._share_prompts = can_share_prompts(model)
        # Passes of several ranks wait for each other, so they run in one order.
        side_by_side = device.type == "cpu" and ranks.is_alone
        self.threads = MicroBatchThreads(config.resources.learner_threads if side_by_side else 1)
        self._budgets = TokenBudgets(config.actor.micro_batch_tokens)

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
            batches = self._split(phase, batch, apart)
            try:
                return attempt(batches)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                said = allocation_in_words(error)
            # The error is gone by now, and with it the frames that held the pass's tensors.
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            sizes = self._sizes(batch, [rows for rows in batches if len(rows) > 1])
            if not sizes:
                longest = max(self._sizes(batch, batches))
                rows = f"Every micro-batch is a single row already, the longest of {longest} tokens"
                raise nothing_smaller(self._config, phase, f"{said.rstrip('.')}. {rows}")
            if not self._ranks.is_alone:  # the others wait for this one within the pass
                rank = f"rank {self._ranks.rank} of {self._ranks.size}"
                largest = f"a micro-batch of {max(sizes)} tokens"
                raise OutOfMemory(phase, f"{said.rstrip('.')}: {largest} on {rank}")
            self._budgets.shrink(phase, max(sizes))

    def _split(self, phase: str, batch: TrainBatch, apart: Tensor | None) -> list[Tensor]:
        """Returns the rows of this rank's micro-batches."""
        own, budget = self._ranks.rows(batch), self._budgets[phase]
        kinds = [own]
        if apart is not None:
            is_apart = apart.cpu()[own]
            kinds = [rows for rows in (own[~is_apart], own[is_apart]) if len(rows)]
        return [
            rows[some]
            for rows in kinds
            for some in micro_batches(batch.select(rows), budget, share_prompts=self._share_prompts)
        ]

    def end_step(self) -> dict[str, float]:
        """Returns the step's metrics, see `TokenBudgets`."""
        return self._budgets.end_step()

    def state(self) -> dict[str, Any]:
        """Returns what a resume needs, as plain values."""
        return {"learned": self._budgets.learned()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self._budgets.restore(state["learned"])

    def _sizes(self, batch: TrainBatch, batches: Sequence[Tensor]) -> list[int]:
        return [padded_tokens(batch, rows, share_prompts=self._share_prompts) for rows in batches]
