"""The settings of each problem family, its prompt and its reward: the section `env`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

TOY_SOURCE: Final = "toy"


class Section(BaseModel):
    """A frozen group of settings that knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _RewardedEnv(Section):
    """What every env's reward may be replaced by."""

    reward: str | None = Field(None, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
    """package.module:function, a reward of your own with verl's signature, see rl_core/rewards/."""
    reward_workers: int = Field(1, ge=1)
    """Processes that call it."""
    reward_timeout_s: float = Field(5.0, gt=0)
    """Seconds that it may take for one response."""
    reward_memory_mib: int = Field(4_096, ge=64)
    """Address space of such a process."""


class CountdownConfig(_RewardedEnv):
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
    full_score: float = Field(1.0, gt=0)
    """Score of a correct response."""

    @property
    def is_generated(self) -> bool:
        """Whether `data.train_size`, `data.test_size` and `data.seed` make the rows."""
        return True

    @model_validator(mode="after")
    def _ordered(self) -> CountdownConfig:
        for what in ("operands", "number", "target"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise ValueError(f"env.min_{what}={low} is above env.max_{what}={high}: swap them")
        return self


class Gsm8kConfig(_RewardedEnv):
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
    full_score: float = Field(1.0, gt=0)
    """Score of a correct response."""

    @property
    def is_generated(self) -> bool:
        """Whether `data.train_size`, `data.test_size` and `data.seed` make the rows."""
        return self.source == TOY_SOURCE


EnvConfig = Annotated[CountdownConfig | Gsm8kConfig, Field(discriminator="name")]
