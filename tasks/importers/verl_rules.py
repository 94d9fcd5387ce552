"""A script's settings -> ours: those with a name of ours, verl's defaults, then rule by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from rl_core.config.run import RunConfig
from tasks.importers.verl_algorithm import algorithm_findings
from tasks.importers.verl_costs import disk_findings
from tasks.importers.verl_files import model_findings, problem_findings, reward_findings
from tasks.importers.verl_loop import loop_findings
from tasks.importers.verl_settings import DEFAULTS, SAME
from tasks.importers.verl_values import Given, Settings, at, nested
from tasks.preflight_checks.finding import Finding


def translate(given: Mapping[str, Given], line: int) -> tuple[Settings, list[Finding]]:
    """Returns a script's settings as ours, and what is said of them."""
    same = {SAME[key]: one.plain for key, one in given.items() if key in SAME}
    settings = {key: value for key, value in same.items() if not _is_none(key, value)}
    findings = [
        *_defaults(settings, line),
        *model_findings(given, settings, line),
        *problem_findings(given, settings),
        *reward_findings(given, settings),
        *algorithm_findings(given, settings, line),
        *loop_findings(given, settings, line),
    ]
    findings += _out_of_range(given, settings)
    return settings, [*findings, *disk_findings(given, settings)]


def _out_of_range(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Leaves out what our settings refuse by itself; how they go together is said at the start."""
    try:
        RunConfig.model_validate(nested(settings))
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    else:
        return
    for item in wrong:
        ours = ".".join(part for part in item["loc"] if isinstance(part, str))
        theirs = next((key for key in given if SAME.get(key) == ours), None)
        if theirs is not None and settings.pop(ours, None) is not None:
            said = f"{theirs}={given[theirs].value} is out of the range of {ours}"
            yield at(given[theirs].line, said, f"{item['msg'].lower()}; left out")


def _is_none(key: str, value: object) -> bool:
    """Says whether a value is verl's word for none: null, or -1 but for top_k."""
    return value is None or (value == -1 and key != "rollout.top_k")


def _defaults(settings: Settings, line: int) -> Iterator[Finding]:
    """What a script leaves to verl has verl's value, where ours is another."""
    filled = {key: value for key, value in DEFAULTS.items() if key not in settings}
    settings |= filled
    if filled:
        said = " ".join(f"{key}={value}" for key, value in filled.items())
        yield at(line, "what the script leaves to verl has verl's defaults", said, is_grave=False)
