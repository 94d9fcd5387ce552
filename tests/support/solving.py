"""One puzzle solved, an expression's value, and Countdown as an env that answers."""

from collections.abc import Sequence
from fractions import Fraction

import pytest

from rl_core.envs.countdown import Countdown
from rl_core.envs.countdown.scoring import parse, run
from rl_core.envs.countdown.solver import solve_many
from rl_core.envs.text_env import EnvTurn


def let_countdown_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows `env.max_turns` above 1, which no env of ours takes."""
    monkeypatch.setattr(Countdown, "reply", lambda *said: EnvTurn("go on"))


def solve(numbers: Sequence[int], target: int) -> tuple[str | None, int]:
    """Returns one solution as text, None where there is none, and the number of distinct ones."""
    return solve_many([numbers], [target])[0]


def evaluate(text: str) -> Fraction:
    """Returns the exact value of an expression, or raises ExpressionError."""
    numbers, program = parse(text)
    return Fraction(run(program, numbers))
