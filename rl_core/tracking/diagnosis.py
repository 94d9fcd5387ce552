"""What a run's metrics mean, in words: each rule knows one way in which training goes wrong.

A rule reads series of metrics by their names (verl's) and returns a `Diagnosis` or None. Series
that a log lacks make a rule silent, so logs of other trainers are read as well. Rules compare a
run's beginning with its end: means over its first and last steps, a quarter of them but at most 20.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import beyond_recovery, remedies
from rl_core.runs.settings_file import leaves
from rl_core.tracking.memory_growth import AVAILABLE_GIB, HOST_GIB, full_at, growths
from rl_core.tracking.reward_rules import REWARD_RULES
from rl_core.tracking.series import (
    FEWEST_STEPS,
    LONGEST_WINDOW,
    STEPS_IN_A_ROW,
    Diagnosis,
    Series,
)

FULL_CARD = 0.05
"""Share of a card left at a phase's peak below which it counts as nearly full."""
_ON_ONE_CARD = RunConfig.model_validate({"resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5}})
"""Where nobody knows a run's settings."""
_MULTIPLIER = np.uint64(6_364_136_223_846_793_005)


def diagnose(
    rows: Iterable[Mapping[str, Any]],
    config: RunConfig | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> list[Diagnosis]:
    """Returns what is wrong with a run, the gravest first; nothing where nothing stands out.

    Args:
        rows: the run's metrics, one mapping per step.
        config: its settings in force, where they are known: an advice then names those left.
        settings: of its `config.yaml`, by section, where only these are known.
    """
    series = Series(rows)
    known = dict(leaves(config.model_dump(mode="json") if config else settings or {}))
    found = [
        _nearly_full_card(series, config),
        _growing_memory(series, known.get("trainer.total_steps")),
        *(rule(series) for rule in _RULES),
    ]
    return [_without_what_is_set(one, known) for one in found if one is not None]


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
    lately = {p: series.values(prefix + p)[-STEPS_IN_A_ROW:] for p in series.ending(prefix)}
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
    return Diagnosis(
        "nearly_full_card",
        "the card is nearly full: a longer batch may not fit",
        f"{fullest} left {max(left[fullest], 0.0):.2f} of {totals[-1]:.1f} GiB",
        advice,
    )


def _fooled_scorer(series: Series) -> Diagnosis | None:
    if series.values("curriculum/passed_over_frac"):
        return None  # what is asked becomes easier or harder
    trained, tests = series.gain("reward/accuracy"), series.values("val/accuracy")
    if trained is None or len(tests) < 3 or trained < 0.1 or tests[-1] - tests[0] > 0.25 * trained:
        return None
    return Diagnosis(
        "fooled_scorer",
        "training accuracy rises and test accuracy does not: answers may fool the scorer, or "
        "problems are learned by heart",
        f"reward/accuracy {trained:+.3f}, val/accuracy {tests[0]:.3f} -> {tests[-1]:.3f}",
        "read responses that scored (countdown-train sql samples_of_a_verdict -p verdict=correct) "
        "and check that train and test rows are of one kind (countdown-train validate)",
    )


def _length_collapse(series: Series) -> Diagnosis | None:
    lengths, accuracy = series.ends("response_length/mean"), series.gain("reward/accuracy")
    if lengths is None or lengths[1] > 0.5 * lengths[0] or (accuracy or 0.0) > 0.05:
        return None
    return Diagnosis(
        "length_collapse",
        "responses shrink without getting better: the model stops thinking",
        f"response_length/mean {lengths[0]:.0f} -> {lengths[1]:.0f} tokens",
        "a larger algorithm.kl_coef or a smaller actor.lr holds the policy; check that right "
        "answers score much more than short ones",
    )


def _entropy_collapse(series: Series) -> Diagnosis | None:
    entropy = series.ends("actor/entropy_loss")
    if entropy is None or entropy[0] <= 0 or entropy[1] > 0.2 * entropy[0]:
        return None
    if _is_getting_better(series):
        return None
    return Diagnosis(
        "entropy_collapse",
        "the policy has become nearly certain: it explores no more",
        f"actor/entropy_loss {entropy[0]:.3f} -> {entropy[1]:.3f} nats per token",
        "actor.clip_eps_high=0.28, a larger actor.entropy_coef, a smaller actor.lr, "
        "rollout.temperature=1",
    )


def _kl_blow_up(series: Series) -> Diagnosis | None:
    values = [abs(value) for value in series.values("critic/kl")]
    if len(values) < FEWEST_STEPS:
        return None
    usual, last = median(values), median(values[-5:])  # not the mean: one bad batch is no trend
    if last < 1.0 or last < 5 * usual:
        return None
    return Diagnosis(
        "kl_blow_up",
        "the policy runs away from the reference model",
        f"critic/kl {last:.2f} nats per response at the end, {usual:.3f} is usual in this run",
        "a smaller actor.lr, a larger algorithm.kl_coef or algorithm.kl_controller=adaptive; go on "
        "from an earlier checkpoint",
    )


def _useless_critic(series: Series) -> Diagnosis | None:
    values = series.values("critic/vf_explained_var")
    last = values[-STEPS_IN_A_ROW:]
    if len(values) < 2 * STEPS_IN_A_ROW or max(last) >= 0:
        return None
    return Diagnosis(
        "useless_critic",
        "the critic predicts worse than a constant would: its baseline adds noise",
        f"critic/vf_explained_var below 0 for {STEPS_IN_A_ROW} steps, now {last[-1]:.2f}",
        "critic.warmup_steps, a larger critic.lr, or an estimator without a critic "
        "(algorithm.estimator=grpo, algorithm.group_size=8)",
    )


def _never_clipped(series: Series) -> Diagnosis | None:
    clipped = series.values("actor/pg_clipfrac")
    if len(clipped) < FEWEST_STEPS or any(clipped) or _is_getting_better(series):
        return None
    return Diagnosis(
        "never_clipped",
        "each batch makes one update, so PPO's clip never acts",
        f"actor/pg_clipfrac is 0 in all {len(clipped)} steps",
        "actor.mini_batch_size below data.train_batch_size, or actor.ppo_epochs=2, if more "
        "learning per rollout is wished; else nothing is wrong",
    )


def _groups_without_spread(series: Series) -> Diagnosis | None:
    share = series.ends("group/zero_spread_frac")
    if share is None or share[1] <= 0.5:
        return None
    return Diagnosis(
        "groups_without_spread",
        "most groups teach nothing: all their responses score alike",
        f"group/zero_spread_frac {share[1]:.2f} at the end",
        "algorithm.resample_rounds=2, a larger algorithm.group_size, problems nearer to what the "
        "model can just do",
    )


def _truncated(series: Series) -> Diagnosis | None:
    share = series.ends("response_length/clip_ratio")
    if share is None or share[1] <= 0.2:
        return None
    if share[1] < share[0] and _is_getting_better(series):
        return None  # it learns to be short
    return Diagnosis(
        "truncated",
        "many responses are cut off before their answer",
        f"response_length/clip_ratio {share[0]:.2f} -> {share[1]:.2f}",
        "a larger data.max_response_length, or algorithm.mask_truncated=true so that cut ones "
        "teach nothing",
    )


def _growing_gap(series: Series) -> Diagnosis | None:
    gap = series.ends("rollout/logprob_gap_mean")
    if gap is None or gap[1] < 1e-3 or gap[1] < 3 * gap[0]:
        return None
    stale = series.ends("rollout/staleness_mean")
    less_stale = "a smaller rollout.staleness; " if stale and stale[1] > 0 else ""
    return Diagnosis(
        "growing_gap",
        "rollout and learner disagree more and more about the same tokens",
        f"rollout/logprob_gap_mean {gap[0]:.2g} -> {gap[1]:.2g} nats per token",
        f"{less_stale}rollout.engine=hf tells which side is wrong; model.dtype=float32; "
        "actor.importance_cap bounds the harm meanwhile",
    )


def _repeated_text(series: Series) -> Diagnosis | None:
    share = series.ends("rollout/repeated_frac")
    if share is None or share[1] <= 0.3 or share[1] < 1.5 * share[0]:
        return None
    return Diagnosis(
        "repeated_text",
        "responses repeat themselves",
        f"{share[0]:.0%} -> {share[1]:.0%} of a response's 8-token runs occurred in it before",
        "a smaller actor.lr, a larger algorithm.kl_coef; read the longest responses "
        "(countdown-train sql longest_responses)",
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
    return Diagnosis(
        "falling_throughput",
        "generation has become slower",
        f"rollout/tokens_per_s {first:,.0f} -> {last:,.0f}",
        "look for other work on the machine or a hot card; longer responses alone do not do this "
        "(countdown-train sql throughput_by_step)",
    )


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
    return Diagnosis(
        "growing_memory",
        f"the memory of {who} grows steadily: the machine's is full at about step {full_step}",
        f"{'; '.join(map(str, found))}; {available[-1]:.1f} GiB are left",
        "Ctrl-C saves, and the same command goes on from there with new processes; values of "
        "your own for ONEDNN_PRIMITIVE_CACHE_CAPACITY and LRU_CACHE_CAPACITY may be too large",
    )


_RULES = (
    *REWARD_RULES,
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


def repeated_share(token_ids: NDArray[np.int64], length: int = 8) -> float:
    """Returns which share of a response's runs of `length` tokens has occurred in it before.

    0 for a response that repeats nothing or is shorter than two runs, near 1 for a loop.

    Args:
        token_ids: [T], of one response.
        length: tokens of a run.
    """
    if len(token_ids) <= length:
        return 0.0
    # A polynomial modulo 2^64 stands for a run: two different ones meet once in 10^19.
    powers = np.cumprod(np.full(length, _MULTIPLIER))
    runs = np.convolve(token_ids.astype(np.uint64), powers, "valid")
    return 1 - len(set(runs.tolist())) / len(runs)
