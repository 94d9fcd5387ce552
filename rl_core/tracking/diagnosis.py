"""What a run's metrics mean, in words: each rule knows one way in which training goes wrong.

A rule reads series of metrics by their names (verl's) and returns a `Diagnosis` or None. Series
that a log lacks make a rule silent, so logs of other trainers are read as well. Rules compare a
run's beginning with its end: means over its first and last steps, a quarter of them but at most 20.
What is said of each, and what to try, is in `diagnosis.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import yaml

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import beyond_recovery, remedies
from rl_core.runs.settings_file import leaves
from rl_core.tracking.host_memory import AVAILABLE_GIB, HOST_GIB, full_at, growths
from rl_core.tracking.series import FEWEST_STEPS, LONGEST_WINDOW, Series

_STEPS_IN_A_ROW = 10
_FORMAT_SCORE = 0.1
"""What a well-formed wrong answer scores in Countdown (SPEC's and TinyZero's default)."""
_SOME = 0.01
_LOST_STEPS = 3
_NOT_FINITE = "not_finite/"
_MOST_NAMES = 4
_NEARLY_ALL = 0.99
FULL_CARD = 0.05
"""Share of a card left at a phase's peak below which it counts as nearly full."""
_ON_ONE_CARD = RunConfig.model_validate({"resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5}})
"""Where nobody knows a run's settings."""
_TEXTS: Final[dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is wrong with a run, with its evidence and what to try."""

    rule: str
    says: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says} ({self.evidence}). Try: {self.advice}"


def diagnose(
    rows: Iterable[Mapping[str, Any]],
    config: RunConfig | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> list[Diagnosis]:
    """Returns what is wrong with a run, the gravest first; nothing where nothing stands out.

    An advice leaves out what is set by `config`, the settings in force, or by `settings`, those of
    the run's `config.yaml` by section.
    """
    series = Series(rows)
    known = dict(leaves(config.model_dump(mode="json") if config else settings or {}))
    found = [
        _nearly_full_card(series, config),
        _growing_memory(series, known.get("trainer.total_steps")),
        *(rule(series) for rule in _RULES),
    ]
    return [_without_what_is_set(one, known) for one in found if one is not None]


def _said(rule: str, evidence: str, **values: object) -> Diagnosis:
    """Returns a rule's diagnosis, with these values in its texts."""
    texts = {kind: text.format(**values) for kind, text in _TEXTS[rule].items()}
    return Diagnosis(rule, texts["says"], evidence, texts["advice"])


def _without_what_is_set(found: Diagnosis, settings: Mapping[str, Any]) -> Diagnosis:
    """Leaves out of an advice each `key=value` that the run has already."""
    parts = found.advice.split(", ")
    left = [
        part
        for part in parts
        if str(settings.get(part.partition("=")[0])).removesuffix(".0") != part.partition("=")[2]
    ]
    return replace(found, advice=", ".join(left or parts))


def _is_getting_better(series: Series) -> bool:
    """Says whether accuracy rises: what looks odd is then how this run learns."""
    tests = series.values("val/accuracy")
    gains = [series.gain("reward/accuracy") or 0.0, tests[-1] - tests[0] if tests else 0.0]
    return max(gains) > 0.05


def _nearly_full_card(series: Series, config: RunConfig | None) -> Diagnosis | None:
    """Before a phase runs out of memory: what a retry would change then, changed in good time."""
    totals, prefix = series.values("memory/card_gib"), "memory/card_left_gib/"
    lately = {p: series.values(prefix + p)[-_STEPS_IN_A_ROW:] for p in series.ending(prefix)}
    left = {phase: min(values) for phase, values in lately.items() if values}
    if not totals or not left:
        return None
    fullest = min(left, key=lambda phase: left[phase])
    if left[fullest] >= FULL_CARD * totals[-1]:
        return None
    error = OutOfMemory(fullest, "")
    if config is None:
        advice = f"what is not set yet of {', '.join(remedies(_ON_ONE_CARD, error))}"
    else:
        helpful = [*remedies(config, error), *beyond_recovery(config, fullest)]
        advice = f"{helpful[0]}, the next lever"
    return _said(
        "nearly_full_card",
        f"{fullest} left {max(left[fullest], 0.0):.2f} of {totals[-1]:.1f} GiB",
        advice=advice,
    )


def _reward_fails(series: Series) -> Diagnosis | None:
    """Told at once: a function that fails costs the responses of every step."""
    share = _share(series, "reward_error")
    if share < _SOME:
        return None
    how = "for some responses, which count as 0"
    if share >= _NEARLY_ALL:
        how = "at all, so there is nothing to learn from"
    return _said(
        "reward_fails", f"reward/verdict/reward_error is {share:.3f} of the last steps", how=how
    )


def _reward_always_same(series: Series) -> Diagnosis | None:
    scores = series.values("critic/score/mean")
    if len(scores) < FEWEST_STEPS or len(set(scores)) > 1:
        return None
    if _share(series, "reward_error") > _NEARLY_ALL:
        return None
    rule = "reward_always_same" if scores[0] else "reward_always_zero"
    return _said(rule, f"critic/score/mean is {scores[0]:g} in all {len(scores)} steps")


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
        if score[1] > 1.25 * _FORMAT_SCORE:
            return None
        # If every other response earns the credit.
        correct = max(0.0, (score[1] - _FORMAT_SCORE) / (1 - _FORMAT_SCORE))
        known = (
            f"the log has no accuracy; a format credit of {_FORMAT_SCORE:g} leaves at most "
            f"{correct:.1%} right answers at full format"
        )
    rule = "nothing_is_correct" if _share(series, "incorrect") > 0 else "format_credit_only"
    return _said(rule, f"score {score[0]:.3f} -> {score[1]:.3f} while {known}")


def _share(series: Series, verdict: str) -> float:
    """Returns the share of a verdict in the last steps; steps without it do not log it."""
    shares = dict(series.points(f"reward/verdict/{verdict}"))
    steps = [step for step, _ in series.points("critic/score/mean")][-_STEPS_IN_A_ROW:]
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
    return _said(
        "score_lost",
        f"critic/score/mean was {top:.3g} at step {top_step}",
        score=points[-1][1],
        step=since,
    )


def _not_finite(series: Series) -> Diagnosis | None:
    """Of an imported log: here a step whose loss is no number ends the run."""
    firsts = {name: series.points(f"{_NOT_FINITE}{name}")[0] for name in series.ending(_NOT_FINITE)}
    if not firsts:
        return None
    begins = min(step for step, _ in firsts.values())
    names = [name for name, (step, _) in firsts.items() if step == begins]
    return _said(
        "not_finite",
        f"{', '.join(names[:_MOST_NAMES])} {'is' if len(names) == 1 else 'are'} nan or inf there",
        step=begins,
    )


def _fooled_scorer(series: Series) -> Diagnosis | None:
    if series.values("curriculum/passed_over_frac"):
        return None  # what is asked becomes easier or harder
    trained, tests = series.ends("reward/accuracy"), series.values("val/accuracy")
    if trained is None or len(tests) < 3 or tests[-1] >= trained[1]:
        return None  # sampled answers have become as good as greedy ones
    if (gain := trained[1] - trained[0]) < 0.1 or tests[-1] - tests[0] > 0.25 * gain:
        return None
    seen = f"reward/accuracy {gain:+.3f}, val/accuracy {tests[0]:.3f} -> {tests[-1]:.3f}"
    return _said("fooled_scorer", seen)


def _length_collapse(series: Series) -> Diagnosis | None:
    lengths, accuracy = series.ends("response_length/mean"), series.gain("reward/accuracy")
    if lengths is None or lengths[1] > 0.5 * lengths[0] or (accuracy or 0.0) > 0.05:
        return None
    return _said(
        "length_collapse", f"response_length/mean {lengths[0]:.0f} -> {lengths[1]:.0f} tokens"
    )


def _entropy_collapse(series: Series) -> Diagnosis | None:
    entropy = series.ends("actor/entropy_loss")
    if entropy is None or entropy[0] <= 0 or entropy[1] > 0.2 * entropy[0]:
        return None
    if _is_getting_better(series):
        return None
    return _said(
        "entropy_collapse",
        f"actor/entropy_loss {entropy[0]:.3f} -> {entropy[1]:.3f} nats per token",
    )


def _kl_blow_up(series: Series) -> Diagnosis | None:
    values = [abs(value) for value in series.values("critic/kl")]
    if len(values) < FEWEST_STEPS:
        return None
    usual, last = median(values), median(values[-5:])  # not the mean: one bad batch is no trend
    if last < 1.0 or last < 5 * usual:
        return None
    return _said(
        "kl_blow_up",
        f"critic/kl {last:.2f} nats per response at the end, {usual:.3f} is usual in this run",
    )


def _useless_critic(series: Series) -> Diagnosis | None:
    values = series.values("critic/vf_explained_var")
    last = values[-_STEPS_IN_A_ROW:]
    if len(values) < 2 * _STEPS_IN_A_ROW or max(last) >= 0:
        return None
    return _said(
        "useless_critic",
        f"critic/vf_explained_var below 0 for {_STEPS_IN_A_ROW} steps, now {last[-1]:.2f}",
    )


def _never_clipped(series: Series) -> Diagnosis | None:
    clipped = series.values("actor/pg_clipfrac")
    if len(clipped) < FEWEST_STEPS or any(clipped) or _is_getting_better(series):
        return None
    return _said("never_clipped", f"actor/pg_clipfrac is 0 in all {len(clipped)} steps")


def _groups_without_spread(series: Series) -> Diagnosis | None:
    share = series.ends("group/zero_spread_frac")
    if share is None or share[1] <= 0.5:
        return None
    return _said("groups_without_spread", f"group/zero_spread_frac {share[1]:.2f} at the end")


def _truncated(series: Series) -> Diagnosis | None:
    share = series.ends("response_length/clip_ratio")
    if share is None or share[1] <= 0.2:
        return None
    if share[1] < share[0] and _is_getting_better(series):
        return None  # it learns to be short
    return _said("truncated", f"response_length/clip_ratio {share[0]:.2f} -> {share[1]:.2f}")


def _growing_gap(series: Series) -> Diagnosis | None:
    gap = series.ends("rollout/logprob_gap_mean")
    if gap is None or gap[1] < 1e-3 or gap[1] < 3 * gap[0]:
        return None
    stale = series.ends("rollout/staleness_mean")
    less_stale = "a smaller rollout.staleness; " if stale and stale[1] > 0 else ""
    return _said(
        "growing_gap",
        f"rollout/logprob_gap_mean {gap[0]:.2g} -> {gap[1]:.2g} nats per token",
        less_stale=less_stale,
    )


def _repeated_text(series: Series) -> Diagnosis | None:
    share = series.ends("rollout/repeated_frac")
    if share is None or share[1] <= 0.3 or share[1] < 1.5 * share[0]:
        return None
    return _said(
        "repeated_text",
        f"{share[0]:.0%} -> {share[1]:.0%} of a response's 8-token runs occurred in it before",
    )


def _falling_throughput(series: Series) -> Diagnosis | None:
    rates = series.values("rollout/tokens_per_s")[2:]  # the first steps warm the engine up
    if len(rates) < 2 * FEWEST_STEPS:
        return None
    width = min(LONGEST_WINDOW, len(rates) // 4)
    first, last = median(rates[:width]), median(rates[-width:])
    if last > 0.6 * first:
        return None
    lengths = series.values("response_length/mean")[2:]
    if len(lengths) == len(rates):  # a short response has more of its prompt in each of its tokens
        before, after = median(lengths[:width]), median(lengths[-width:])
        if after / last < before / first:
            return None
    return _said("falling_throughput", f"rollout/tokens_per_s {first:,.0f} -> {last:,.0f}")


def _growing_memory(series: Series, total_steps: int | None) -> Diagnosis | None:
    available = series.values(AVAILABLE_GIB)
    held = {name: series.points(name) for name in series.names(HOST_GIB)}
    found = growths({name.removeprefix(HOST_GIB): points for name, points in held.items()})
    if not found or not available:
        return None
    full_step = full_at(found, available[-1])
    if total_steps is not None and full_step > total_steps:
        return None  # its processes are gone by then
    who = " and ".join(growth.process for growth in found)
    return _said(
        "growing_memory",
        f"{'; '.join(map(str, found))}; {available[-1]:.1f} GiB are left",
        who=who,
        step=full_step,
    )


_RULES = (
    _not_finite,
    _reward_fails,
    _reward_always_same,
    _score_lost,
    _format_credit_only,
    _fooled_scorer,
    _length_collapse,
    _entropy_collapse,
    _kl_blow_up,
    _repeated_text,
    _truncated,
    _groups_without_spread,
    _useless_critic,
    _growing_gap,
    _falling_throughput,
    _never_clipped,
)
