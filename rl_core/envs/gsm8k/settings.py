"""The settings of GSM8K: where its problems come from, how they are asked and scored."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from rl_core.envs.settings import EnvSettings

TOY_SOURCE: Final = "toy"


class Gsm8kConfig(EnvSettings):
    """The GSM8K problem family: grade-school word problems with a numeric answer."""

    name: Literal["gsm8k"] = "gsm8k"
    """Chosen by `env=gsm8k`."""
    source: str = "openai/gsm8k"
    """A Hugging Face data set (config `main`), or a folder of train and test JSONL or parquet.

    `toy` is neither: word problems of one to three steps in GSM8K's form, written on the spot.
    """
    prompt_template: Literal["chat", "think"] = "chat"
    """`chat`: the tokenizer's own tags; `think`: a plain text that ends with <think>."""
    answer_from: Literal["strict", "lenient"] = "strict"
    """`strict`: the last `#### x`; `lenient`: the last number."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of a response with a number that is not correct."""

    @property
    def is_generated(self) -> bool:
        """Whether `data.train_size`, `data.test_size` and `data.seed` make the rows."""
        return self.source == TOY_SOURCE
