"""What a person changed between two `config.yaml` of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import yaml


def changed_settings(before: str, after: str) -> str:
    """Returns the settings that are other than before, as one would type them.

    Args:
        before: a `config.yaml`; where it is damaged, nothing is known to be other.
        after: another.
    """
    if not (old := _settings_in(before)):
        return ""
    return " ".join(
        f"{name}={value}" for name, value in _settings_in(after).items() if old.get(name) != value
    )


def _settings_in(text: str) -> dict[str, str]:
    try:
        return dict(_leaves(yaml.safe_load(text)))
    except yaml.YAMLError:
        return {}


def _leaves(settings: object, name: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(settings, Mapping):
        yield name, settings if isinstance(settings, str) else json.dumps(settings)
        return
    for key, value in settings.items():
        yield from _leaves(value, f"{name}.{key}" if name else str(key))
