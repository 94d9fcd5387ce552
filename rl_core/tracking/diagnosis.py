"""What a run's metrics mean: each rule detects one way in which training goes wrong.

A rule reads series of metrics by verl's names and returns a `Diagnosis` or None. It returns None
also if the log lacks a series, so logs of other trainers can be read too. Rules compare a run's
beginning with its end: means over its first and last steps, a quarter of them but at most 20. Their
texts, and what to try, are in `diagnosis.yaml`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import yaml

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import beyond_recovery, remedies
from rl_core.runs.settings_file import leaves

FEWEST_STEPS: Final = 8
"""The fewest steps of a series whose beginning and end are compared."""
LONGEST_WINDOW: Final = 20

FULL_CARD = 0.05
"""A card is nearly full if less than this share of it is left at a phase's peak."""
_STEPS_IN_A_ROW = 10
_FORMAT_SCORE = 0.1
"""What a well-formed wrong answer scores in Countdown (SPEC's and TinyZero's default)."""
_LOST_STEPS = 3
_NOT_FINITE = "not_finite/"
_NORM = "actor/grad_norm"
_NEARLY_ALL = 0.99
_SUSPECT_GAIN = 0.1
TESTS_OF_A_HACKED_REWARD: Final = 3
"""Tests in a row that must find a fooled scorer before `budget.stop_on_hacked_reward` acts."""
_ON_ONE_CARD = RunConfig.model_validate({"resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5}})
"""Used if the settings of a run are unknown."""
_TEXTS: Final[dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


class Series:
    """The metrics of a run's training steps, by name; step 0 counts only for `val/*`."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        """Takes the rows of a log, and the run's settings by dotted key."""
        self.rows = sorted(rows, key=lambda row: int(row["step"]))
        self.settings = settings

    def points(self, name: str) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric, oldest first, without the steps that lack it."""
        return [
            (int(row["step"]), float(row[name]))
            for row in self.rows
            if row.get(name) is not None and (row["step"] > 0 or name.startswith("val/"))
        ]

    def ending(self, prefix: str) -> list[str]:
        """Returns what follows a prefix in the names of metrics: phases, for example."""
        names = (name for row in self.rows for name in row if name.startswith(prefix))
        return list(dict.fromkeys(name.removeprefix(prefix) for name in names))

    def values(self, name: str) -> list[float]:
        """Returns a metric's values, oldest first."""
        return [value for _, value in self.points(name)]

    def ends(self, name: str) -> tuple[float, float] | None:
        """Returns the means of a metric's first and last steps; None for too short a series."""
        values = self.values(name)
        if len(values) < FEWEST_STEPS:
            return None
        width = min(LONGEST_WINDOW, len(values) // 4)
        return fmean(values[:width]), fmean(values[-width:])

    def gain(self, name: str) -> float | None:
        """Returns what a metric rose by, from its first steps to its last."""
        ends = self.ends(name)
        return None if ends is None else ends[1] - ends[0]


@dataclass(frozen=True)
class Diagnosis:
    """One problem of a run, with its evidence and what to try."""

    rule: str
    says: str
    evidence: str
    advice: str

    @property
    def is_note(self) -> bool:
        """Whether nothing is wrong: it explains a metric."""
        return self.rule == "never_clipped"

    def __str__(self) -> str:
        return f"{self.says} ({self.evidence}). Try: {self.advice}"


def diagnose(
    rows: Iterable[Mapping[str, Any]],
    config: RunConfig | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> list[Diagnosis]:
    """Returns what is wrong with a run, the gravest first.

    Advice leaves out what the run has set already: in `config`, the settings in force, or in
    `settings`, those of its `config.yaml` by section.
    """
    known = dict(leaves(config.model_dump(mode="json") if config else settings or {}))
    series = Series(rows, known)
    diagnoses = [_nearly_full_card(series, config), *(rule(series) for rule in _RULES)]
    return [_without_what_is_set(one, known) for one in diagnoses if one is not None]


def hacked_reward(rows: Sequence[Mapping[str, Any]], config: RunConfig) -> str | None:
    """Returns the evidence of the last test, if each of the last tests finds a fooled scorer."""
    known = dict(leaves(config.model_dump(mode="json")))
    tested = [row["step"] for row in rows if row.get("val/accuracy") is not None]
    last_tests = tested[-TESTS_OF_A_HACKED_REWARD:]
    series = [Series([r for r in rows if r["step"] <= step], known) for step in last_tests]
    evidence = [one.evidence for one in map(_fooled_scorer, series) if one is not None]
    return evidence[-1] if len(evidence) == TESTS_OF_A_HACKED_REWARD else None


def _diagnosis(rule: str, evidence: str, **values: object) -> Diagnosis:
    texts = {kind: text.format(**values) for kind, text in _TEXTS[rule].items()}
    return Diagnosis(rule, texts["says"], evidence, texts["advice"])


def _without_what_is_set(diagnosis: Diagnosis, settings: Mapping[str, Any]) -> Diagnosis:
    """Leaves out of the advice each `key=value` that the run has already."""
    parts = diagnosis.advice.split(", ")
    left = [
        part
        for part in parts
        if str(settings.get(part.partition("=")[0])).removesuffix(".0") != part.partition("=")[2]
    ]
    return replace(diagnosis, advice=", ".join(left or parts))


def _is_getting_better(series: Series) -> bool:
    """Returns whether accuracy rises: then unusual metrics are part of learning."""
    tests = series.values("val/accuracy")
    gains = [series.gain("reward/accuracy") or 0.0, tests[-1] - tests[0] if tests else 0.0]
    return max(gains) > 0.05


def _nearly_full_card(series: Series, config: RunConfig | None) -> Diagnosis | None:
    """Advises, before a phase runs out of memory, the change that a retry would make after it."""
    totals = series.values("memory/card_gib")
    prefix = "memory/card_left_gib/"
    lately = {p: series.values(prefix + p)[-_STEPS_IN_A_ROW:] for p in series.ending(prefix)}
    left = {phase: min(values) for phase, values in lately.items() if values}
    fullest = min(left, key=lambda phase: left[phase], default="")
    if not totals or not left or left[fullest] >= FULL_CARD * totals[-1]:
        return None
    helpful = remedies(config or _ON_ONE_CARD, OutOfMemory(fullest, ""))
    advice = f"what is not set yet of {', '.join(helpful)}"
    if config is not None:
        advice = f"{(helpful or beyond_recovery(config, fullest))[0]}, the next lever"
    evidence = f"{fullest} left {max(left[fullest], 0.0):.2f} of {totals[-1]:.1f} GiB"
    return _diagnosis("nearly_full_card", evidence, advice=advice)


def _reward_fails(series: Series) -> Diagnosis | None:
    """Needs only one step: a function that fails wastes the responses of every step."""
    share = _share(series, "reward_error")
    evidence = f"reward/verdict/reward_error is {share:.3f} of the last steps"
    how = "for some responses, which count as 0"
    if share >= _NEARLY_ALL:
        how = "at all, so there is nothing to learn from"
    return _diagnosis("reward_fails", evidence, how=how) if share >= 0.01 else None


def _reward_always_same(series: Series) -> Diagnosis | None:
    scores = series.values("critic/score/mean")
    fails = _share(series, "reward_error") > _NEARLY_ALL
    if fails or len(scores) < FEWEST_STEPS or len(set(scores)) > 1:
        return None
    rule = "reward_always_same" if scores[0] else "reward_always_zero"
    return _diagnosis(rule, f"critic/score/mean is {scores[0]:g} in all {len(scores)} steps")


def _format_credit_only(series: Series) -> Diagnosis | None:
    """Finds a score without accuracy or, if none is logged, one that format credit explains."""
    score = series.ends("critic/score/mean")
    if score is None or score[1] < 0.02:
        return None
    accuracy = series.ends("reward/accuracy")
    if accuracy is not None:
        is_credit = accuracy[1] < 0.01
        known = f"accuracy is {accuracy[1]:.3f}"
    else:
        is_credit = score[1] <= 1.25 * _FORMAT_SCORE
        # If all other responses earn the credit.
        correct = max(0.0, (score[1] - _FORMAT_SCORE) / (1 - _FORMAT_SCORE))
        known = (
            f"the log has no accuracy; a format credit of {_FORMAT_SCORE:g} leaves at most "
            f"{correct:.1%} right answers at full format"
        )
    rule = "nothing_is_correct" if _share(series, "incorrect") > 0 else "format_credit_only"
    evidence = f"score {score[0]:.3f} -> {score[1]:.3f} while {known}"
    return _diagnosis(rule, evidence) if is_credit else None


def _share(series: Series, verdict: str) -> float:
    """Returns the share of a verdict in the last steps; a step that does not log it counts as 0."""
    shares = dict(series.points(f"reward/verdict/{verdict}"))
    steps = [step for step, _ in series.points("critic/score/mean")][-_STEPS_IN_A_ROW:]
    return fmean(shares.get(step, 0.0) for step in steps) if steps else 0.0


def _score_lost(series: Series) -> Diagnosis | None:
    """Finds a score that was lost a few steps ago: the means of other rules still include it."""
    points = series.points("critic/score/mean")
    top_step, top = max(points, key=lambda point: point[1], default=(0, 0.0))
    low = [value <= 0.1 * top for _, value in points]
    if len(points) < FEWEST_STEPS or top < 0.02 or not all(low[-_LOST_STEPS:]):
        return None
    since = points[len(low) - low[::-1].index(False)][0]
    evidence = f"critic/score/mean was {top:.3g} at step {top_step}"
    return _diagnosis("score_lost", evidence, score=points[-1][1], step=since)


def _not_finite(series: Series) -> Diagnosis | None:
    """Only for imported logs: of our own runs see `_updates_lost`."""
    firsts = {name: series.points(f"{_NOT_FINITE}{name}")[0] for name in series.ending(_NOT_FINITE)}
    if not firsts:
        return None
    begins = min(step for step, _ in firsts.values())
    names = [name for name, (step, _) in firsts.items() if step == begins]
    are = "is" if len(names) == 1 else "are"
    return _diagnosis("not_finite", f"{', '.join(names[:4])} {are} nan or inf there", step=begins)


def _updates_lost(series: Series) -> Diagnosis | None:
    """An update whose gradient is not finite moves no weight, see `ModelOptimizer.step`."""
    norms = [row[_NORM] for row in series.rows if _NORM in row][-_STEPS_IN_A_ROW:]
    num_lost = sum(norm is None or not math.isfinite(norm) for norm in norms)
    evidence = f"{_NORM} is not finite in {num_lost} of the last {len(norms)}"
    return _diagnosis("updates_lost", evidence) if num_lost >= _LOST_STEPS else None


def _fooled_scorer(series: Series) -> Diagnosis | None:
    """Compares the gain in training, of accuracy or of the score, with that of the tests.

    Format credit is part of a score and no progress, so a score must rise by more than that.
    """
    tests = series.values("val/accuracy")
    # A curriculum makes the problems easier or harder.
    if len(tests) < 3 or series.values("curriculum/passed_over_frac"):
        return None
    full = series.settings.get("env.full_score", 1.0)
    credit = series.settings.get("env.format_score", _FORMAT_SCORE)
    if series.settings.get("env.reward"):
        credit = 0.0
    for name, unit, free in (
        ("reward/accuracy", 1.0, 0.0),
        ("critic/score/mean", full, credit / full),
    ):
        if (trained := series.ends(name)) is None or tests[-1] >= trained[1] / unit:
            continue  # sampled answers have become as good as greedy ones
        gain = (trained[1] - trained[0]) / unit
        if gain > _SUSPECT_GAIN + free and tests[-1] - tests[0] <= 0.25 * gain:
            change = f"{trained[0]:.3f} -> {trained[1]:.3f}"
            tested = f"{len(tests)} tests: val/accuracy {tests[0]:.3f} -> {tests[-1]:.3f}"
            return _diagnosis("fooled_scorer", f"{name} {change}, {tested}")
    return None


def _got_worse(series: Series) -> Diagnosis | None:
    """Compares the last test with the best: a quarter of it is more than a few problems' chance."""
    tests = series.points("val/accuracy")
    if len(tests) < 3:
        return None
    step, best = max(tests, key=lambda point: point[1])
    last_step, last = tests[-1]
    if best - last < max(0.05, best / 4):
        return None
    seen = f"val/accuracy {best:.3f} at step {step}, {last:.3f} at step {last_step}"
    if kl := series.values("critic/kl"):
        seen += f", critic/kl {kl[-1]:.2g}"
    return _diagnosis("got_worse", seen, step=step)


def _kl_blow_up(series: Series) -> Diagnosis | None:
    values = [abs(value) for value in series.values("critic/kl")]
    if len(values) < FEWEST_STEPS:
        return None
    usual = median(values)
    last = median(values[-5:])  # not the mean: one bad batch is no trend
    evidence = f"critic/kl {last:.2f} nats per token at the end, {usual:.3f} is usual in this run"
    return _diagnosis("kl_blow_up", evidence) if last >= max(1.0, 5 * usual) else None


def _useless_critic(series: Series) -> Diagnosis | None:
    values = series.values("critic/vf_explained_var")
    last = values[-_STEPS_IN_A_ROW:]
    if len(values) < 2 * _STEPS_IN_A_ROW or max(last) >= 0:
        return None
    evidence = f"critic/vf_explained_var below 0 for {_STEPS_IN_A_ROW} steps, now {last[-1]:.2f}"
    return _diagnosis("useless_critic", evidence)


def _never_clipped(series: Series) -> Diagnosis | None:
    clipped = series.values("actor/pg_clipfrac")
    if len(clipped) < FEWEST_STEPS or any(clipped) or _is_getting_better(series):
        return None
    return _diagnosis("never_clipped", f"actor/pg_clipfrac is 0 in all {len(clipped)} steps")


def _growing_gap(series: Series) -> Diagnosis | None:
    gap = series.ends("rollout/logprob_gap_mean")
    if gap is None or gap[1] < 1e-3 or gap[1] < 3 * gap[0]:
        return None
    stale = series.ends("rollout/staleness_mean")
    less_stale = "a smaller rollout.staleness; " if stale and stale[1] > 0 else ""
    evidence = f"rollout/logprob_gap_mean {gap[0]:.2g} -> {gap[1]:.2g} nats per token"
    return _diagnosis("growing_gap", evidence, less_stale=less_stale)


def _falling_throughput(series: Series) -> Diagnosis | None:
    rates = series.values("rollout/tokens_per_s")[2:]  # the first steps warm the engine up
    if len(rates) < 2 * FEWEST_STEPS:
        return None
    width = min(LONGEST_WINDOW, len(rates) // 4)
    first = median(rates[:width])
    last = median(rates[-width:])
    lengths = series.values("response_length/mean")[2:] or [1.0] * len(rates)
    # The prompt costs more per token of a short response.
    is_shorter = median(lengths[-width:]) * first < median(lengths[:width]) * last
    if last > 0.6 * first or (is_shorter and len(lengths) == len(rates)):
        return None
    return _diagnosis("falling_throughput", f"rollout/tokens_per_s {first:,.0f} -> {last:,.0f}")


def _trend(
    rule: str, metric: str, is_wrong: Callable[[Series, float, float], bool], evidence: str
) -> Callable[[Series], Diagnosis | None]:
    """Returns a rule on a metric's first and last mean, which its evidence shows."""

    def find(series: Series) -> Diagnosis | None:
        ends = series.ends(metric)
        if ends is None or not is_wrong(series, *ends):
            return None
        return _diagnosis(rule, f"{metric} {evidence.format(*ends)}")

    return find


_RULES = (
    _not_finite,
    _updates_lost,
    _reward_fails,
    _reward_always_same,
    _score_lost,
    _format_credit_only,
    _fooled_scorer,
    _got_worse,
    _trend(
        "length_collapse",
        "response_length/mean",
        lambda run, first, last: last <= first / 2 and (run.gain("reward/accuracy") or 0) <= 0.05,
        "{:.0f} -> {:.0f} tokens",
    ),
    _trend(
        "entropy_collapse",
        "actor/entropy_loss",
        lambda run, first, last: 0 < first >= 5 * last and not _is_getting_better(run),
        "{:.3f} -> {:.3f} nats per token",
    ),
    _kl_blow_up,
    _trend(
        "repeated_text",
        "rollout/repeated_frac",
        lambda run, first, last: last > 0.3 and last >= 1.5 * first,
        "{:.0%} -> {:.0%} of a response's 8-token runs occurred in it before",
    ),
    _trend(  # unless it learns to be short
        "truncated",
        "response_length/clip_ratio",
        lambda run, first, last: last > 0.2 and not (last < first and _is_getting_better(run)),
        "{:.2f} -> {:.2f}",
    ),
    _trend(
        "groups_without_spread",
        "group/zero_spread_frac",
        lambda run, first, last: last > 0.5,
        "{1:.2f} at the end",
    ),
    _useless_critic,
    _growing_gap,
    _falling_throughput,
    _never_clipped,
)
