"""Scores a response of any env (data path stage 4): one function, one dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rl_core.config.env import CountdownConfig, Gsm8kConfig
from rl_core.envs import countdown, gsm8k
from rl_core.types import ScoredText

GroundTruth = Mapping[str, Any] | str


def score(
    env: CountdownConfig | Gsm8kConfig, response: str, ground_truth: GroundTruth
) -> ScoredText:
    """Returns the score and verdict of one response under the env's settings.

    Args:
        env: chooses the scorer and its options.
        response: what the model wrote; any text.
        ground_truth: `Problem.ground_truth` of the same env.
    """
    return _SCORERS[env.name](env, response, ground_truth)


def strict_and_lenient(
    env: CountdownConfig | Gsm8kConfig,
) -> tuple[CountdownConfig | Gsm8kConfig, CountdownConfig | Gsm8kConfig]:
    """Returns the env's settings with the strictest place of an answer, and with the most lenient.

    Countdown: the response's last line, or anywhere in it. GSM8K: after `####`, or the last number.
    """
    strict, lenient = _ANSWER_FROM[env.name]
    return (
        env.model_copy(update={"answer_from": strict}),
        env.model_copy(update={"answer_from": lenient}),
    )


def _score_countdown(env: CountdownConfig, response: str, truth: Mapping[str, Any]) -> ScoredText:
    scored = countdown.score_response(
        response,
        truth["numbers"],
        truth["target"],
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )
    value = None if scored.value is None else str(scored.value)
    return ScoredText(scored.score, scored.verdict, scored.answer, value)


def _score_gsm8k(env: Gsm8kConfig, response: str, truth: str) -> ScoredText:
    return gsm8k.score_response(
        response,
        truth,
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )


_ANSWER_FROM = {"countdown": ("last_line", "anywhere"), "gsm8k": ("strict", "lenient")}
_SCORERS: dict[str, Callable[[Any, str, Any], ScoredText]] = {
    "countdown": _score_countdown,
    "gsm8k": _score_gsm8k,
}
