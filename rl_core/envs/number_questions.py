"""Questions in plain text whose answer is one number: largest, smallest, product (stages 1 and 4).

They need no reasoning: answers have a few tokens, for a small model that can already read and
answer. It learns to answer with nothing but a number, and with the right one.
"""

import math
import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from rl_core.envs.numbers import last_number, numbers
from rl_core.envs.text_env import Checks, TextEnv, TextProblem
from rl_core.types import ScoredText

LONGEST_ANSWER: Final = 100
"""Characters of an answer that are kept; a longer one is wrong."""
_LARGEST: Final = 99
_FACTORS: Final = (12, 30)
"""Largest first and second factor of a product; the smallest is 2. Larger ones were not learned."""
_KINDS: Final = (*("largest", "smallest") * 9, "times")
"""Kinds of the rows, in turn; products are rare since there are only 264."""
_ANSWERS: Final[dict[str, Any]] = {"largest": max, "smallest": min, "times": math.prod}


class NumberQuestions(TextEnv):
    """Short questions about numbers; every answer is one number."""

    name: Literal["number_questions"] = "number_questions"
    """Chosen by `env=number_questions`."""
    prompt_template: Literal["chat"] = "chat"
    """The tokenizer's own tags."""
    answer_from: Literal["strict", "lenient"] = "strict"
    """`strict`: the one number that the response holds; `lenient`: its last number."""
    max_numbers: int = Field(5, ge=3, le=9)
    """Longest list of which the largest or smallest number is asked; the shortest has 3."""

    checks: ClassVar = Checks(
        specific=("number_questions_truth.sql", "number_questions_splits.sql")
    )

    def problems(self, rng: random.Random) -> Iterator[TextProblem]:
        """Yields questions of each kind in turn, until no product is left."""
        draws = {kind: _draws(kind, self.max_numbers, rng) for kind in dict.fromkeys(_KINDS)}
        for kind in cycle(_KINDS):
            if (numbers := next(draws[kind], None)) is None:
                return
            listed = ", ".join(map(str, numbers))
            question = f"Which of these numbers is the {kind}: {listed}?"
            if kind == "times":
                question = f"What is {numbers[0]} times {numbers[1]}?"
            yield TextProblem(
                f"{question} Answer with the number only.",
                str(_ANSWERS[kind](numbers)),
                kind,
                solution=f"{kind}: {listed}",
            )

    def score(self, response: str, truth: str) -> ScoredText:
        """Returns the score of a response: total, and linear in its length.

        Verdicts are `correct`, `wrong_value`, `several_numbers` (only if `strict`), and
        `no_answer` if it holds no number.
        """
        number = last_number(response)
        if number is None:
            return self.scored(None, right=False)
        if self.answer_from == "strict":
            others = (other for other in numbers(response) if other.digits != number.digits)
            if (other := next(others, None)) is not None:
                return ScoredText(
                    self.format_score,
                    "several_numbers",
                    f"{other.text} {number.text}"[:LONGEST_ANSWER],
                )
        answer = number.text[:LONGEST_ANSWER]
        if number.value == int(truth):
            return ScoredText(self.full_score, "correct", answer, truth)
        value = None if number.value is None else str(number.value)
        return ScoredText(self.format_score, "wrong_value", answer, value)

    @staticmethod
    def difficulty_of(truth: str, solution: str) -> str:
        """Returns how many numbers a question names, and how long its answer is."""
        return f"{solution.count(',') + 1} numbers, {len(truth)} digits"


def _draws(kind: str, max_numbers: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Yields numbers for questions; no set of numbers comes twice, in any order or split."""
    if kind == "times":
        first, second = _FACTORS
        pairs = {tuple(sorted((a, b))) for a in range(2, first + 1) for b in range(2, second + 1)}
        for pair in rng.sample(sorted(pairs), len(pairs)):
            yield tuple(rng.sample(pair, 2))
        return
    seen: set[tuple[int, ...]] = set()
    while True:
        numbers = rng.sample(range(1, _LARGEST + 1), rng.randint(3, max_numbers))
        key = tuple(sorted(numbers))
        if key not in seen:
            seen.add(key)
            yield tuple(numbers)
