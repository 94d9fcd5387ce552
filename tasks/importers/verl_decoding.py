"""How verl decodes in its tests -> `evaluation.*`; its penalty near the longest response."""

from typing import Any, Final

from pydantic import ValidationError

from rl_core.config.operations import EvaluationConfig
from tasks.importers.verl_table import ScriptSettings

_THEIRS: Final = "actor_rollout_ref.rollout.val_kwargs."
_OVERLONG: Final = (  # DAPO, early and later
    "reward_model.overlong_buffer.",
    "reward_model.reward_kwargs.overlong_buffer_cfg.",
    "reward.reward_kwargs.overlong_buffer_cfg.",
)


def add_tests(script: ScriptSettings) -> None:
    """Takes over how verl samples in its tests, which are greedy unless two keys say otherwise."""
    given = {name: script.number(_THEIRS + name) for name in ("temperature", "top_p", "top_k")}
    if not script.is_true(_THEIRS + "do_sample") or given["temperature"] is None:
        return
    samples = script.count(f"{_THEIRS}n") or 1  # verl's default, too
    settings: dict[str, Any] = {"decoding": "sampled", "samples_per_problem": samples}
    settings |= {name: value for name, value in given.items() if value is not None}
    try:
        EvaluationConfig.model_validate(settings)
    except ValidationError as error:
        why = error.errors()[0]["msg"].lower()
        script.say("out_of_range", f"{_THEIRS}temperature", ours="evaluation.temperature", why=why)
    else:
        script.settings |= {f"evaluation.{name}": value for name, value in settings.items()}


def add_overlong(script: ScriptSettings) -> None:
    """Takes over how many of the last tokens cost reward, where verl's penalty is on."""
    for section in _OVERLONG:
        tokens = script.count(f"{section}len")
        if tokens is None or not script.is_true(f"{section}enable"):
            continue
        script.settings["algorithm.overlong_tokens"] = tokens
        factor = f"{section}penalty_factor"
        if script.plain(factor) not in (None, 1):
            script.say("overlong_factor", factor, tokens=tokens)
