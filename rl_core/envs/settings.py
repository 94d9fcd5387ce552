"""The settings that each family of problems has, whatever its problems: the section `env`."""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from rl_core.section import Section

REWARD_NAME: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class EnvSettings(Section):
    """What an env is asked in, how it is scored, and what its reward may be replaced by.

    Each env's own model states its `name`, the choices of the first settings and its defaults.
    """

    name: str
    """Chosen by `env=NAME`."""
    prompt_template: str
    """The text around a problem; `chat` is rendered by the tokenizer's own chat template."""
    answer_from: str
    """Where a response's answer may stand."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of a response with an answer that is not correct."""
    full_score: float = Field(1.0, gt=0)
    """Score of a correct response."""
    max_turns: int = Field(1, ge=1)
    """Times that the model writes: more let the env answer a response, and the model goes on."""
    reward: str | None = Field(None, pattern=REWARD_NAME)
    """package.module:function, a reward of your own with verl's signature, see rl_core/rewards/."""
    reward_workers: int = Field(1, ge=1)
    """Processes that call it."""
    reward_timeout_s: float = Field(5.0, gt=0)
    """Seconds that it may take for one response."""
    reward_env: tuple[str, ...] = ()
    """Variables of your environment that it gets although they look like credentials: [NAME]."""
    reward_memory_mib: int = Field(4_096, ge=64)
    """Address space of such a process."""

    @model_validator(mode="after")
    def _pays_most_for_what_is_right(self) -> EnvSettings:
        if self.format_score >= self.full_score:
            raise ValueError(
                f"env.format_score={self.format_score:g} of a wrong answer must be below "
                f"env.full_score={self.full_score:g} of a right one"
            )
        return self

    @property
    def slug(self) -> str:
        """The name as part of a folder's: that of a module's env has a colon."""
        return self.name.replace(":", ".")

    @property
    def is_generated(self) -> bool:
        """Whether `data.train_size`, `data.test_size` and `data.seed` make the rows."""
        return True
