"""The settings of Countdown: which puzzles, how they are asked and scored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl_core.envs.settings import EnvSettings


class CountdownConfig(EnvSettings):
    """The Countdown problem family: combine all numbers, each once, to make the target."""

    name: Literal["countdown"] = "countdown"
    """Chosen by `env=countdown`."""
    min_operands: int = Field(3, ge=2, le=6)
    """Fewest numbers of a problem."""
    max_operands: int = Field(4, ge=2, le=6)
    """Most numbers of a problem."""
    min_number: int = Field(1, ge=1)
    """Smallest number."""
    max_number: int = Field(99, ge=1, le=999)
    """Largest number."""
    min_target: int = Field(10, ge=1)
    """Smallest target."""
    max_target: int = Field(99, ge=1, le=9999)
    """Largest target."""
    prompt_template: Literal["base", "qwen-instruct", "chat"] = "base"
    """`base`: TinyZero's text; `qwen-instruct`: with Qwen's tags; `chat`: the tokenizer's own."""
    answer_from: Literal["anywhere", "last_line"] = "anywhere"
    """Where the answer may stand: `anywhere`, or on the `last_line`, as TinyZero has it."""
    format_score: float = Field(0.1, ge=0, le=1)
    """Score of a response with an answer that is not correct."""

    @model_validator(mode="after")
    def _ordered(self) -> CountdownConfig:
        for what in ("operands", "number", "target"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise ValueError(f"env.min_{what}={low} is above env.max_{what}={high}: swap them")
        return self
