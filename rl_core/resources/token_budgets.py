"""Tokens per micro-batch of each phase: halved if memory runs out, then slowly raised again.

Here are only the numbers; microbatching.py repeats the passes. adaptive_engine.py does the same for
engines, and counts responses at a time.

The rule. A phase starts at `actor.micro_batch_tokens`. If a pass runs out of memory, its budget
becomes half of the largest micro-batch that could be split, until the pass fits. Then every 20
steps without such an error add a quarter, up to four fifths of what failed last. After 200 of them
that failure is forgotten, and the budget may grow to where it started. So the largest possible
budget costs one repeated pass in some 200 steps, and a budget that became small because of another
program on the card recovers.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

GROWING_STEPS: Final = 20
FORGETTING_STEPS: Final = 200

_logger = logging.getLogger(__name__)

_Tokens = Annotated[int, Field(ge=1)]


@dataclass
class _Budget:
    """The budget of a phase, and its last failure."""

    tokens: _Tokens
    failed_tokens: _Tokens | None = None
    """The largest micro-batch of the last pass that did not fit, until that is forgotten."""
    clean_steps: Annotated[int, Field(ge=0)] = 0
    """Since the last pass that did not fit."""

    def shrink(self, failed_tokens: int) -> None:
        self.tokens = max(failed_tokens // 2, 1)
        self.failed_tokens = failed_tokens
        self.clean_steps = 0

    def end_clean_step(self, limit: int) -> None:
        self.clean_steps += 1
        if self.clean_steps >= FORGETTING_STEPS:
            self.failed_tokens = None
        if self.clean_steps % GROWING_STEPS == 0:
            ceiling = limit if self.failed_tokens is None else self.failed_tokens * 4 // 5
            self.tokens = max(self.tokens, min(self.tokens + max(self.tokens // 4, 1), ceiling))


Learned = dict[str, _Budget]
"""By phase; left out if the budget is the limit and no failure is remembered."""
_LEARNED: Final = TypeAdapter(Learned)


class TokenBudgets:
    """The budgets of a learner's phases, in padded tokens; of an engine, in responses at a time.

    They start at `limit`, and are never more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._learned: Learned = {}
        self._failures: dict[str, list[int]] = {}

    def __getitem__(self, phase: str) -> int:
        """Returns the budget of a phase, and counts the phase as one of the current step."""
        self._failures.setdefault(phase, [])
        budget = self._learned.get(phase)
        return self._limit if budget is None else budget.tokens

    def shrink(self, phase: str, failed_tokens: int) -> None:
        """Sets a phase's budget to half of `failed_tokens`, the largest micro-batch to split."""
        self._failures[phase].append(failed_tokens)
        self._learned.setdefault(phase, _Budget(self._limit)).shrink(failed_tokens)

    def end_step(self) -> dict[str, float]:
        """Lets budgets grow; returns the step's metrics.

        `memory/budget_tokens/<phase>` is what the step ended with and `memory/oom/<phase>` how many
        passes did not fit; `memory/oom_tokens/<phase>`, if there were any, the first one's largest
        micro-batch.
        """
        metrics: dict[str, float] = {}
        for phase, failed_tokens in self._failures.items():
            metrics[f"memory/budget_tokens/{phase}"] = self[phase]
            metrics[f"memory/oom/{phase}"] = len(failed_tokens)
            if failed_tokens:
                metrics[f"memory/oom_tokens/{phase}"] = failed_tokens[0]
            elif (budget := self._learned.get(phase)) is not None:
                budget.end_clean_step(self._limit)
                if budget.tokens == self._limit and budget.failed_tokens is None:
                    del self._learned[phase]
        self._failures = {}
        return metrics

    def learned(self) -> dict[str, dict[str, Any]]:
        """Returns what `restore` takes, as plain numbers by phase."""
        return {phase: asdict(budget) for phase, budget in self._learned.items()}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Restores budgets, lowered to the limit if they exceed it.

        Raises:
            ValueError: if `learned` did not return it.
        """
        self._learned = _LEARNED.validate_python(learned)
        for budget in self._learned.values():
            budget.tokens = min(budget.tokens, self._limit)


def merge_metrics(engines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns memory metrics over several engines: the sum of failures, otherwise the worst."""
    merged: dict[str, float] = {}
    for name in sorted({name for metrics in engines for name in metrics}):
        numbers = [metrics[name] for metrics in engines if name in metrics]
        worst = min if name.startswith("memory/budget_") else max
        merged[name] = sum(numbers) if name.startswith("memory/oom/") else worst(numbers)
    return merged


def log_out_of_memory(step: int | None, metrics: Mapping[str, float]) -> None:
    """Logs which phases of a step (None: of an evaluation after training) ran out of memory."""
    when = "evaluation" if step is None else f"step {step}"
    for name, failed in metrics.items():
        kind, _, phase = name.rpartition("/")
        if kind == "memory/oom_tokens":
            message = (
                f"{phase} ran out of memory at {int(failed)} tokens; "
                f"{int(metrics[f'memory/budget_tokens/{phase}'])} from now on, the step's result "
                "is unchanged"
            )
        elif kind == "memory/oom_seqs":
            message = (
                f"out of memory in {phase}: {int(failed)} -> "
                f"{int(metrics['memory/budget_seqs/gen'])} responses at a time, nothing was lost"
            )
        else:
            continue
        _logger.warning("%s: %s", when, message)
