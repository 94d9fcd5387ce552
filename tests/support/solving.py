"""One puzzle solved."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.envs.countdown.solver import solve_many


def solve(numbers: Sequence[int], target: int) -> tuple[str | None, int]:
    """Returns one solution as text, None where there is none, and the number of distinct ones."""
    return solve_many([numbers], [target])[0]
