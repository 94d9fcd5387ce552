"""If generation runs out of memory, unfinished responses are generated again, fewer at a time.

The number of responses at a time changes none of them: each has a seed of its own. So running out
of memory costs only the work on unfinished responses, not the step or the run.
"""

import gc
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch

from rl_core.config.run import RunConfig
from rl_core.errors import allocation_in_words, is_out_of_memory, out_of_memory_as
from rl_core.resources.oom_recovery import nothing_smaller
from rl_core.resources.token_budgets import TokenBudgets
from rl_core.rollout.protocol import RolloutEngine
from rl_core.types import Completion, GenerationRequest, SamplingSettings

_BUDGET: Final = "gen"
"""One budget for all phases: they share the engine and its memory."""
_logger = logging.getLogger(__name__)


class AdaptiveEngine:
    """Generates as many responses at a time as memory allows; do not delete the model's folder."""

    def __init__(self, config: RunConfig, model_path: Path) -> None:
        self._config = config
        self._budgets = TokenBudgets(config.rollout.max_num_seqs)
        self._failures: dict[str, list[int]] = {}
        self._size = self._budgets[_BUDGET]
        self.engine = build_engine(config, model_path, self._size)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions with their positions; OutOfMemory only if not a single one fits."""
        self._failures.setdefault(phase, [])
        if self._size != self._budgets[_BUDGET]:
            self._resize(phase)
        left = dict(enumerate(requests))
        while left:
            positions = list(left)
            size = min(self._size, len(left))
            message = ""
            try:
                for i, completion in self.engine.generate(list(left.values()), sampling):
                    del left[positions[i]]
                    yield positions[i], completion
            except (RuntimeError, ValueError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                message = allocation_in_words(error)
            # The error is gone by now, and with it the frames that held the tensors.
            if message:
                self._shrink(phase, size, message)

    def end_step(self) -> dict[str, float]:
        """Returns metrics of what was generated since the last call.

        `memory/budget_seqs/gen` is the number of responses at a time in the end, and
        `memory/oom/<phase>` how often they did not fit; if they did not, `memory/oom_seqs/<phase>`
        is how many were under way the first time.
        """
        metrics: dict[str, float] = {}
        if self._failures:
            metrics[f"memory/budget_seqs/{_BUDGET}"] = self._budgets[_BUDGET]
        self._budgets.end_step()
        for phase, failed in self._failures.items():
            metrics[f"memory/oom/{phase}"] = len(failed)
            if failed:
                metrics[f"memory/oom_seqs/{phase}"] = failed[0]
        self._failures = {}
        return metrics

    def _shrink(self, phase: str, failed: int, message: str) -> None:
        if failed == 1:
            alone = f"{message.rstrip('.')}. A single response was under way"
            raise nothing_smaller(self._config, phase, alone)
        self._failures.setdefault(phase, []).append(failed)  # a step may have ended meanwhile
        self._budgets.shrink(_BUDGET, failed)
        now = self._budgets[_BUDGET]
        _logger.warning(
            "out of memory in %s: %d -> %d responses at a time: %s", phase, failed, now, message
        )
        self._resize(phase)

    def _resize(self, phase: str) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        self._size = self._budgets[_BUDGET]
        with out_of_memory_as(phase):
            self.engine.resize(self._size)


def build_engine(config: RunConfig, model_path: Path, max_num_seqs: int) -> RolloutEngine:
    """Returns the engine of `rollout.engine`; only its library is loaded."""
    if config.rollout.engine == "vllm":
        from rl_core.rollout.vllm_engine import VllmEngine

        return VllmEngine(config, model_path, max_num_seqs)
    from rl_core.rollout.hf_engine import HfEngine

    return HfEngine(
        model_path,
        dtype=config.compute_dtype,
        max_num_seqs=max_num_seqs,
        on_gpu=config.resources.rollout_gpus > 0,
    )
