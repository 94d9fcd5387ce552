"""Rules of the diagnosis about scores: none, without rewards, or without anything correct."""

from __future__ import annotations

from statistics import fmean

from rl_core.tracking.series import FEWEST_STEPS, STEPS_IN_A_ROW, Diagnosis, Series

FORMAT_SCORE = 0.1
"""What a well-formed wrong answer scores in Countdown (SPEC's and TinyZero's default)."""
_SOME = 0.01
_LOST_STEPS = 3
_NOT_FINITE = "not_finite/"
_MOST_NAMES = 4
_NEARLY_ALL = 0.99


def _reward_fails(series: Series) -> Diagnosis | None:
    """Told at once: a function that fails costs the responses of every step."""
    share = _share(series, "reward_error")
    if share < _SOME:
        return None
    return Diagnosis(
        "reward_fails",
        "env.reward gives no score for some responses, which count as 0"
        if share < _NEARLY_ALL
        else "env.reward gives no score at all, so there is nothing to learn from",
        f"reward/verdict/reward_error is {share:.3f} of the last steps",
        "the log says why for the first of them, and countdown-train sql samples_of_a_verdict "
        "-p verdict=reward_error shows some; env.reward_timeout_s and env.reward_memory_mib are "
        "the limits",
    )


def _reward_always_same(series: Series) -> Diagnosis | None:
    scores = series.values("critic/score/mean")
    if len(scores) < FEWEST_STEPS or len(set(scores)) > 1:
        return None
    if _share(series, "reward_error") > _NEARLY_ALL:
        return None
    if scores[0] != 0:
        return Diagnosis(
            "reward_always_same",
            "every step has the same mean score, so there is nothing to learn from",
            f"critic/score/mean is {scores[0]:g} in all {len(scores)} steps",
            "read some responses (countdown-train sql samples_of_a_verdict): a rule that finds no "
            "answer in them gives all the same score, and so does one that is met by all",
        )
    return Diagnosis(
        "reward_always_zero",
        "no response has scored anything yet, so there is nothing to learn from",
        f"critic/score/mean is 0 in all {len(scores)} steps",
        "read some responses (countdown-train sql samples_of_a_verdict): a wrong prompt template, "
        "answers cut off by data.max_response_length, or a model too weak for these problems",
    )


def _format_credit_only(series: Series) -> Diagnosis | None:
    """Score without accuracy; where a log has no accuracy, what format credit explains of it."""
    score = series.ends("critic/score/mean")
    if score is None or score[1] < 0.02:
        return None
    accuracy = series.ends("reward/accuracy")
    if accuracy is not None:
        if accuracy[1] >= 0.01:
            return None
        known = f"accuracy is {accuracy[1]:.3f}"
    else:
        if score[1] > 1.25 * FORMAT_SCORE:
            return None
        known = (
            f"the log has no accuracy; a format credit of {FORMAT_SCORE:g} leaves at most "
            f"{_most_correct(score[1]):.1%} right answers at full format"
        )
    if _share(series, "incorrect") > 0:
        return Diagnosis(
            "nothing_is_correct",
            "no response counts as correct by env.reward, whatever its score",
            f"score {score[0]:.3f} -> {score[1]:.3f} while {known}",
            "read the score in place of accuracy where it has no right and wrong; else let the "
            "function return acc, or a score of env.full_score where a response is right",
        )
    return Diagnosis(
        "format_credit_only",
        "the score is format credit: the model learns the answer tag, not the task",
        f"score {score[0]:.3f} -> {score[1]:.3f} while {known}",
        "do not read the score as progress; a stronger base model, easier problems (of Countdown "
        "env.max_operands=3), or a warm start; env.format_score=0 removes the credit",
    )


def _most_correct(score: float) -> float:
    """Returns the share of right answers if every other response earns the format credit."""
    return max(0.0, (score - FORMAT_SCORE) / (1 - FORMAT_SCORE))


def _share(series: Series, verdict: str) -> float:
    """Returns the share of a verdict in the last steps; steps without it do not log it."""
    shares = dict(series.points(f"reward/verdict/{verdict}"))
    steps = [step for step, _ in series.points("critic/score/mean")][-STEPS_IN_A_ROW:]
    return fmean(shares.get(step, 0.0) for step in steps) if steps else 0.0


def _score_lost(series: Series) -> Diagnosis | None:
    """A score that was there and is gone: other rules look at means, in which it is still there."""
    points = series.points("critic/score/mean")
    if len(points) < FEWEST_STEPS:
        return None
    top_step, top = max(points, key=lambda point: point[1])
    low = [value <= 0.1 * top for _, value in points]
    if top < 0.02 or not all(low[-_LOST_STEPS:]):
        return None
    since = points[len(low) - low[::-1].index(False)][0]
    return Diagnosis(
        "score_lost",
        f"the score fell to {points[-1][1]:.3g} at step {since} and stayed there",
        f"critic/score/mean was {top:.3g} at step {top_step}",
        "go on from a checkpoint before that step with a smaller actor.lr, actor.grad_clip=1 or a "
        "larger algorithm.kl_coef",
    )


def _not_finite(series: Series) -> Diagnosis | None:
    """Of an imported log: here a step whose loss is no number ends the run."""
    firsts = {name: series.points(f"{_NOT_FINITE}{name}")[0] for name in series.ending(_NOT_FINITE)}
    if not firsts:
        return None
    begins = min(step for step, _ in firsts.values())
    names = [name for name, (step, _) in firsts.items() if step == begins]
    return Diagnosis(
        "not_finite",
        f"values are not finite numbers from step {begins} on: what was learned after it is lost",
        f"{', '.join(names[:_MOST_NAMES])} {'is' if len(names) == 1 else 'are'} nan or inf there",
        "go on from a checkpoint before that step with a smaller actor.lr, actor.grad_clip=1 or "
        "model.dtype=float32",
    )


REWARD_RULES = (
    _not_finite,
    _reward_fails,
    _reward_always_same,
    _score_lost,
    _format_credit_only,
)
"""The gravest first."""
