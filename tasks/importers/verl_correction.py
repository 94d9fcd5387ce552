"""verl's correction of rollouts -> `actor.importance_*`: weights of tokens, and what they drop."""

from contextlib import suppress
from typing import Any, Final

from tasks.importers.verl_table import VALUES, ScriptSettings

_KEYS: Final = "algorithm.rollout_correction."
_LEVELS: Final = VALUES["actor.importance_level"]
_CAP: Final = 2.0  # verl's own threshold of weights
_LEAST: Final = 1e-9  # which any ratio is above


def add_correction(script: ScriptSettings) -> None:
    """Weighs tokens by learner over engine only if verl is set to; by default it is not."""
    settings = script.settings
    cap = settings.pop("actor.importance_cap", _CAP)
    cap_of_early = script.number("actor_rollout_ref.actor.tis_imp_ratio_cap")
    if cap_of_early or script.plain("algorithm.rollout_is"):
        settings["actor.importance_cap"] = cap
    level = script.plain(weighs := _KEYS + "rollout_is")
    if level in ("token", "sequence"):
        low, cap = _bounds(script.plain(_KEYS + "rollout_is_threshold"))
        _set_weights(script, "rollout_is", (level, low, cap), drops=low is not None)
    elif level is not None:
        script.say("correction_unlike", weighs)
    if (name := script.plain(rejects := _KEYS + "rollout_rs")) is None:
        return
    rejected = _LEVELS.get(str(name))
    # Responses that are kept by their mean have weights of tokens, at most 2.
    weighs_alike = rejected == level or (rejected, level) == ("geometric", "token")
    if rejected is None or not (weighs_alike or level is None):
        script.say("correction_unlike", rejects)
        return
    limits = [script.plain(f"{_KEYS}rollout_{of}_threshold") for of in ("rs", "is")]
    low, cap = _bounds(next((limit for limit in limits if limit is not None), None))
    if name in ("token", "sequence", "geometric"):  # of 2025: bounds of learner over engine
        low = script.number(_KEYS + "rollout_rs_threshold_lower")
    elif low is not None:  # of the engine over the learner
        cap, low = (1 / bound for bound in (low, cap))
    _set_weights(script, "rollout_rs", (rejected, low or 1 / cap, cap), drops=True)
    script.say("rejected", rejects, weighs="" if level else "; what is kept weighs its ratio")


def _bounds(threshold: Any) -> tuple[float | None, float]:
    """Returns both bounds of `0.5_2.0`, or the upper one of a number, by default verl's."""
    low, _, high = str(threshold).rpartition("_")
    with suppress(ValueError):
        return (max(float(low), _LEAST) if low else None), max(float(high), _LEAST)
    return None, _CAP


def _set_weights(
    script: ScriptSettings,
    key: str,
    weights: tuple[str, float | None, float],
    *,
    drops: bool,
) -> None:
    level, low, cap = weights
    if not (cap >= 1 >= (low or 1)):
        script.say("correction_bounds", f"{_KEYS}{key}_threshold")
        return
    script.settings |= {
        "actor.importance_level": level,
        "actor.importance_low": low,
        "actor.importance_cap": cap,
        "actor.importance_outside": "drop" if drops else "clip",
    }
