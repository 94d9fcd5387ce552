"""What an env provides to train a home-made base model: texts, weights and gates (stage 0)."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

TOKENIZER_TEXTS: Final = 2_000
GATE_PROBLEMS: Final = 256
"""Held-out problems, from the first, that the gates are measured on."""


@dataclass(frozen=True, slots=True)
class SftText:
    """A prompt and the response to be learned."""

    prompt: str
    response: str
    note: Any = None
    """For the env's own `weigh`."""


@dataclass(frozen=True)
class SftExamples(ABC):
    """The examples of one env: Countdown's search traces, or the solutions of word problems."""

    give_up_prob: float
    """How often the model shall give up, or stop early."""
    train: Sequence[tuple[str, Any]]
    """Prompts, and the env's data on each problem."""
    test: Sequence[tuple[str, Any]]
    """The same of the problems that the model is measured with."""

    floors: ClassVar[Mapping[str, float]] = {}
    """Gates: the smallest values that measures of `judge` may have."""
    marks: ClassVar[Sequence[str]]
    """Texts whose first tokens `weigh` looks for."""
    words: ClassVar[Sequence[str]] = ()
    """Words that are tokens by themselves, whatever is next to them."""

    def __post_init__(self) -> None:
        if not self.train or not self.test:
            raise ValueError(
                f"{len(self.train)} train and {len(self.test)} test problems: the home-made base "
                "model needs some of both"
            )

    @property
    def digits_per_token(self) -> int:
        """Most digits of a token: 1 splits numbers into digits, more keeps frequent ones whole."""
        return 1

    @property
    def held_out(self) -> Sequence[str]:
        """Prompts of the first held-out problems."""
        return [prompt for prompt, _ in self.test[:GATE_PROBLEMS]]

    @abstractmethod
    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts and responses to fit the tokenizer to."""

    @abstractmethod
    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns a fresh batch."""

    @abstractmethod
    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns the loss weight of each token of a response from `draw`, with its end token.

        `marks` holds the first token id of each text of `self.marks`.
        """

    @abstractmethod
    def judge(self, responses: Sequence[str]) -> dict[str, float]:
        """Returns measures of greedy responses to the held-out problems."""

    @classmethod
    def failed_gates(cls, measured: Mapping[str, float]) -> tuple[str, ...]:
        """Returns one sentence per gate that is missed."""
        return tuple(
            f"{name} is {measured[name]:.3f}, below {floor}"
            for name, floor in cls.floors.items()
            if measured[name] < floor
        )
