"""How rewards become advantages, and how the policy is held: verl's settings -> ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rl_core.config.run import GROUP_ESTIMATORS
from tasks.importers.verl_settings import AGGREGATIONS, ESTIMATORS, KL_ESTIMATORS, POLICY_LOSSES
from tasks.importers.verl_values import Given, Settings, at, count, is_true, number
from tasks.preflight_checks.finding import Finding

_ACTOR: Final = "actor_rollout_ref.actor."
_RESPONSES: Final = "actor_rollout_ref.rollout.n"
_SMALLEST_GROUP: Final = 8
"""Responses per prompt that a preset gets where a script's one would be no group."""
_RESAMPLED_AT_MOST: Final = 10
"""Rounds of dynamic sampling where verl has no limit."""


def algorithm_findings(
    given: Mapping[str, Given], settings: Settings, line: int
) -> Iterator[Finding]:
    """Adds what the script says of the algorithm, and says what is wrong with it.

    Args:
        given: the settings of the script.
        settings: ours so far.
        line: where its command begins.
    """
    yield from _estimator(given, settings)
    yield from _group(given, settings)
    yield from _policy_loss(given, settings)
    yield from _kl(given, settings, line)


def _estimator(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    one = given.get("algorithm.adv_estimator")
    name = settings.pop("algorithm.estimator", None)
    if one is None or name is None:
        return
    num_responses = count(given, _RESPONSES) or 1
    if isinstance(name, str) and name in ESTIMATORS:
        settings["algorithm.estimator"] = ESTIMATORS[name]
    elif isinstance(name, int | float):
        yield at(
            one.line,
            f"algorithm.adv_estimator={name} is a number where an estimator's name belongs",
            "was algorithm.lam or algorithm.gamma meant? The preset uses gae",
        )
    else:
        nearest = "grpo" if num_responses > 1 else "gae"
        settings["algorithm.estimator"] = nearest
        yield at(
            one.line,
            f"algorithm.adv_estimator={name} is not known",
            f"one of {', '.join(dict.fromkeys(ESTIMATORS.values()))}; the preset uses {nearest}",
        )
    divides = given.get("algorithm.norm_adv_by_std_in_grpo")
    is_grpo = settings.get("algorithm.estimator") == "grpo"
    if is_grpo and divides is not None and divides.plain is False:
        settings["algorithm.estimator"] = "dr_grpo"


def _group(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """How many responses are compared, wherever the script says so."""
    theirs, ours = given.get(_RESPONSES), given.get("algorithm.group_size")
    size = count(given, _RESPONSES) or count(given, "algorithm.group_size")
    if size is not None:
        settings["algorithm.group_size"] = size
    if ours is not None and ours.plain is not None:
        wins = "" if theirs is None else f", which is {theirs.value} and wins"
        yield at(
            ours.line,
            f"algorithm.group_size is no setting of verl, whose name for it is {_RESPONSES}{wins}",
            f"the preset has algorithm.group_size={size}",
        )
    name = settings.get("algorithm.estimator")
    if name in GROUP_ESTIMATORS and (size or 1) < 2:
        settings["algorithm.group_size"] = _SMALLEST_GROUP
        yield at(
            (theirs or given["algorithm.adv_estimator"]).line,
            f"{name} compares the responses to one prompt, and {_RESPONSES} is 1: verl takes 0 for "
            "the mean of a group of one and 1 for its spread, so the raw score is the advantage "
            "and whatever scores is made likelier, format credit too",
            f"here a group has at least 2: the preset has algorithm.group_size={_SMALLEST_GROUP}",
        )
    if name in GROUP_ESTIMATORS and is_true(given, "algorithm.filter_groups.enable"):
        batches = count(given, "algorithm.filter_groups.max_num_gen_batches")
        settings["algorithm.resample_rounds"] = (batches or _RESAMPLED_AT_MOST + 1) - 1


def _policy_loss(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Kind, clips and aggregation of the policy's loss."""
    if (clip := number(given, _ACTOR + "clip_ratio")) is not None:
        for key in ("actor.clip_eps_low", "actor.clip_eps_high"):
            settings.setdefault(key, clip)
    kind = given.get(_ACTOR + "policy_loss.loss_mode")
    if kind is not None and kind.value in POLICY_LOSSES:
        settings["actor.policy_loss"] = POLICY_LOSSES[kind.value]
    elif kind is not None:
        known = ", ".join(POLICY_LOSSES)
        yield at(kind.line, f"loss_mode={kind.value} is not known here", f"{known} are; now ppo")
    way = given.get(_ACTOR + "loss_agg_mode")
    if way is None:
        return
    nearest = next((known for known in AGGREGATIONS if way.value.startswith(known)), "token-mean")
    settings["actor.loss_aggregation"] = nearest
    if way.value != nearest:
        known = ", ".join(AGGREGATIONS)
        yield at(
            way.line,
            f"loss_agg_mode={way.value} is not known here",
            f"{known} are; the preset has actor.loss_aggregation={nearest}",
        )


def _kl(given: Mapping[str, Given], settings: Settings, line: int) -> Iterator[Finding]:
    """How KL holds the policy: in the loss, in the reward or not at all, and its estimate."""
    kind = given.get("algorithm.kl_penalty")
    in_loss = is_true(given, _ACTOR + "use_kl_loss")
    # That it is not in the loss leaves open whether it is in the reward.
    if not in_loss and not any("kl_" in key for key in given if not key.startswith(_ACTOR)):
        yield at(
            line,
            "nothing is said of KL: TinyZero has it in the reward, verl from 0.4 on nowhere",
            "the preset has 0.001 of it in the reward; algorithm.kl_mode=none has none",
            is_grave=False,
        )
    if kind is not None and kind.is_number:
        coef = settings.setdefault("algorithm.kl_coef", kind.plain)
        yield at(
            kind.line,
            f"algorithm.kl_penalty={kind.value} is a number where a kind of estimate belongs "
            "(kl, mse, low_var_kl): verl fails at it where KL is in the reward, and else never "
            "reads it, so nothing has this coefficient",
            f"algorithm.kl_ctrl.kl_coef is meant; the preset has algorithm.kl_coef={coef}",
        )
        kind = None
    if in_loss:
        settings["algorithm.kl_mode"] = "loss"
        kind = given.get(_ACTOR + "kl_loss_type", Given("low_var_kl", 0))
        if (coef := number(given, _ACTOR + "kl_loss_coef")) is not None:
            settings["algorithm.kl_coef"] = coef
    elif "algorithm.use_kl_in_reward" in given:
        in_reward = is_true(given, "algorithm.use_kl_in_reward")
        settings["algorithm.kl_mode"] = "reward" if in_reward else "none"
    if kind is None or "$" in kind.value:
        return
    estimator = KL_ESTIMATORS.get(kind.value.removesuffix("+"))
    if estimator is None:
        known = ", ".join(KL_ESTIMATORS)
        yield at(kind.line, f"KL estimate {kind.value} is not known here", f"{known} are")
        return
    # k1 has no gradient as a loss (rl_core/config/run.py refuses it).
    as_loss = settings.get("algorithm.kl_mode") == "loss"
    settings["algorithm.kl_estimator"] = "k2" if as_loss and estimator == "k1" else estimator
