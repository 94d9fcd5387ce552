"""Countdown: combine all the numbers, each once, with + - * / to make the target."""

from rl_core.envs.countdown.env import CountdownConfig
from rl_core.envs.countdown.rows import (
    DATA_SOURCE,
    Template,
    message_templates,
    render_messages,
    render_prompt,
)
from rl_core.envs.countdown.scoring import ScoredResponse, Verdict, score_response

__all__ = [
    "DATA_SOURCE",
    "CountdownConfig",
    "ScoredResponse",
    "Template",
    "Verdict",
    "message_templates",
    "render_messages",
    "render_prompt",
    "score_response",
]
