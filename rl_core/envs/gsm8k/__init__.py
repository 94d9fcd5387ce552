"""GSM8K: grade-school word problems with a number as the answer."""

from rl_core.envs.gsm8k.env import (
    DATA_SOURCE,
    MAX_NUMBER_LENGTH,
    Gsm8kConfig,
    Template,
    extract_truth,
    render_messages,
    score_response,
)

__all__ = [
    "DATA_SOURCE",
    "MAX_NUMBER_LENGTH",
    "Gsm8kConfig",
    "Template",
    "extract_truth",
    "render_messages",
    "score_response",
]
