"""How verl decodes in its tests -> `evaluation.*`."""

from typing import Any, Final

from pydantic import ValidationError

from rl_core.config.operations import EvaluationConfig
from tasks.importers.verl_table import ScriptSettings

_THEIRS: Final = "actor_rollout_ref.rollout.val_kwargs."


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
