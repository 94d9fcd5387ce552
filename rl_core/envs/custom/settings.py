"""The settings of custom rows: how a question is asked, and how it is scored without a function."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_core.envs.settings import EnvSettings


class CustomConfig(EnvSettings):
    """Questions and answers of `data.train_files`, scored by `env.reward` or word for word."""

    name: Literal["custom"] = "custom"
    """Chosen by `env=custom`."""
    prompt_template: Literal["chat", "base"] = "chat"
    """Around a `question`, which asks for answer tags; `chat`: the tokenizer's own tags; `base`:
    a plain text. A row's own `prompt` stays as it is: tagged with `chat`, raw with `base`."""
    answer_from: Literal["anywhere", "last_line"] = "anywhere"
    """Where answer tags may stand, for the comparison word for word."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of an answer in tags that is not the truth, where `env.reward` names no function."""
