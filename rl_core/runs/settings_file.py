"""Reads a run's `config.yaml`, and finds the settings that differ between two of them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError

from rl_core.config.mistakes import leaves as leaves  # of which its readers need both
from rl_core.config.operations import protocol_of
from rl_core.config.run import RunConfig
from rl_core.section import Section
from rl_core.system.plain_files import MOST_YAML_BYTES, parse_yaml, read_plain
from rl_core.system.redaction import redact

_SETTINGS: Final = TypeAdapter(dict[str, Any])
_SECTIONS: Final = tuple(
    name for name, field in RunConfig.model_fields.items() if isinstance(field.default, Section)
)


def read_settings(run_folder: Path) -> dict[str, Any]:
    """Returns all settings of a run by section; none if they are damaged."""
    return parse_settings(settings_text(run_folder))


def refuse_older(run_folder: Path) -> None:
    """Raises ValueError if a run has settings that are gone: an older version made it."""
    try:
        RunConfig.model_validate(read_settings(run_folder))
    except ValidationError as error:
        gone = [one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"]
        if gone:
            raise ValueError(
                f"run {run_folder.name} was made by an older version (it has "
                f"{'.'.join(map(str, gone[0]))}): report and sql read it, "
                "training does not continue"
            ) from None


def settings_text(run_folder: Path) -> str:
    """Returns the text of a run's `config.yaml`, empty if it cannot be read."""
    file = run_folder / "config.yaml"
    with suppress(ValueError, FileNotFoundError):
        content = read_plain(file, below=run_folder, most_bytes=MOST_YAML_BYTES)
        return content.decode(errors="replace")
    return ""


def parse_settings(text: str) -> dict[str, Any]:
    """Returns the settings in the text of a `config.yaml`, see `read_settings`."""
    with suppress(ValueError):
        settings = _SETTINGS.validate_python(parse_yaml(text))
        if all(isinstance(settings.get(section, {}), dict) for section in _SECTIONS):
            return settings
    return {}


def refuse_other_tests(run_folder: Path, config: RunConfig) -> None:
    """Raises ValueError if the tests of a run that has a `best` would be decoded in another way."""
    settings = read_settings(run_folder)
    began = protocol_of(settings)
    now = config.evaluation.protocol
    if settings and (run_folder / "checkpoints" / "best").is_symlink() and began != now:
        raise ValueError(
            f"the tests of {run_folder.name} count {began}, and these settings {now}: `best` would "
            "compare the two. Keep its evaluation.*, or choose another run_id=NAME; "
            f"`countdown-train evaluate {run_folder.name} evaluation.decoding="
            f"{config.evaluation.decoding}` evaluates what it has trained"
        )


def settings_as_yaml(config: RunConfig) -> str:
    """Returns all settings as YAML, without the passwords of URLs."""
    return redact(
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    )


def changed_settings(before: str, after: str) -> str:
    """Returns the settings that changed, as overrides to type; none if `before` is damaged."""
    if not (old := dict(leaves(parse_settings(before)))):
        return ""
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in leaves(parse_settings(after))
        if name not in old or old[name] != value
    )
