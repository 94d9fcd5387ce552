"""What an env hands to the making of a home-made base model: texts, their weights, and gates.

Data path stage 0. Texts alone are known here: `rl_core/sft/` tokenizes them and trains on them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class SftText:
    """A prompt and the response to be learned."""

    prompt: str
    response: str
    note: Any = None
    """What the env's own `weigh` wants to know of it."""
    turns: tuple[str, ...] = ()
    """The response's pieces, the model's and the env's by turns: the env's are not learned.

    Empty where all of it is the model's.
    """


class SftExamples(Protocol):
    """The examples of one env: Countdown's search traces, or the solutions of word problems."""

    @property
    def digits_per_token(self) -> int:
        """Most digits of a token: 1 spells numbers, more make the frequent ones a token each."""

    @property
    def words(self) -> Sequence[str]:
        """Words that are tokens by themselves, whatever stands beside them."""

    @property
    def marks(self) -> Sequence[str]:
        """Texts whose first tokens `weigh` looks for."""

    @property
    def held_out(self) -> Sequence[str]:
        """Prompts of the problems that the model is measured with."""

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts and responses to fit the tokenizer to."""

    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns a fresh batch."""

    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns the loss weight of each token.

        Args:
            text: one of `draw`.
            response: the token ids of all turns, end included.
            marks: token ids of `marks`.
        """

    def judge(self, responses: Sequence[str]) -> dict[str, float]:
        """Returns what greedy responses to the held-out problems are worth."""

    def failed_gates(self, measured: Mapping[str, float]) -> tuple[str, ...]:
        """Returns one sentence per gate that is missed."""


@runtime_checkable
class AnsweredExamples(Protocol):
    """What examples of several turns have beside, so that what was learned can be measured."""

    @property
    def stop(self) -> Sequence[str]:
        """Texts after which a response waits for the env's words; none if it never does."""

    def answer(self, response: str) -> str | None:
        """Returns the env's words to a response that stopped there; None where it is over."""


def require_problems(train: Sequence[Any], test: Sequence[Any]) -> None:
    """Raises ValueError unless there are problems to learn from and others to measure with."""
    if not train or not test:
        raise ValueError(
            f"{len(train)} train and {len(test)} test problems: the home-made base model needs "
            "some of both"
        )


def below(measured: Mapping[str, float], floors: Mapping[str, float]) -> tuple[str, ...]:
    """Returns one sentence per measure that is below its floor."""
    return tuple(
        f"{name} is {measured[name]:.3f}, below {floor}"
        for name, floor in floors.items()
        if measured[name] < floor
    )
