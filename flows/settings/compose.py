"""Settings: preset and KEY=VALUE overrides -> one validated `RunConfig` (the only hydra import)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from flows.errors import BadInputError
from flows.settings import keys
from flows.settings.keys import PresetName as PresetName  # imported from here by all that compose
from rl_core.config.mistakes import explain, key_of, known_keys, nearest, of_another_env
from rl_core.config.run import RunConfig
from rl_core.envs import DEFAULT_ENV, ENVS
from rl_core.runs.settings_file import leaves
from rl_core.system.plain_files import read_yaml
from rl_core.system.words import in_one_line

_DEFAULT_PRESET: Final = "quickstart"
_FILES: Final = (".yaml", ".yml")
_OF_THE_RUN: Final = ("preset", "run_id", "storage.root", "storage.url")
"""Differ between runs of the same settings."""
_TEXTS: Final = ("string_type", "path_type")  # mistakes about what must be a text
_SECOND_SETTING = re.compile(r"[\s,;]+([A-Za-z_][\w.]*=.*)")
_OF_ANOTHER_SETTING: Final = re.compile(r"\$\{[\w.]*\}")


def compose(overrides: Sequence[str] = (), *, base: RunConfig | None = None) -> RunConfig:
    """Returns the settings of a run, of KEY=VALUE, preset=NAME, env=NAME in Hydra's grammar.

    `base`: settings of an existing run, changed in place of a preset's; its preset and env stay.
    BadInputError: unknown key or choice, wrong type, out of range, impossible combination.
    """
    parsed = _parse(overrides)
    given = {key: _text(item) for key, item in parsed.items()}
    chosen = {key: given.pop(key) for key in parsed if key in keys.CHOICES}
    for group, name in chosen.items():
        if base is not None:
            raise BadInputError(f"{group} cannot change: these are settings of a run")
        if group != "preset" or not name.endswith(_FILES):
            keys.check_choice(group, name)
    if base is not None:
        preset = base.preset
        env = base.env.name
        settings = base.model_dump(mode="json", exclude={"preset"})
    else:
        preset = chosen.get("preset", _DEFAULT_PRESET)
        env, settings = _start(preset, chosen.get("env"))
    for key in given:
        keys.check_key(keys.setting_of(key))
        if keys.setting_of(key) not in known_keys(env):
            raise BadInputError(of_another_env(key, env))
    values = {key: parsed[key].value() for key in given}
    return _validate(_merge(settings, values) | {"preset": preset}, given, env)


def own_settings(config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Returns what differs from the preset's own settings: by name, its value and the run's.

    None is for a setting that the preset's env lacks; a preset that is gone counts as the defaults.
    """
    try:
        preset = compose([f"preset={config.preset}"])
    except BadInputError:
        preset = RunConfig()
    theirs = dict(leaves(preset.model_dump(mode="json")))
    return {
        key: (theirs.get(key), value)
        for key, value in leaves(config.model_dump(mode="json"))
        if key not in _OF_THE_RUN and theirs.get(key) != value
    }


def changed_to(config: RunConfig) -> dict[str, Any]:
    """Returns what differs from the preset's settings, by name, without defaults of another env."""
    plain = {f"env.{name}": field.default for name, field in type(config.env).model_fields.items()}
    return {
        key: value
        for key, (_, value) in own_settings(config).items()
        if plain.get(key, ...) != value
    }


def _parse(overrides: Sequence[str]) -> dict[str, Override]:
    """Returns the overrides by key, each a plain KEY=VALUE that is given once."""
    parser = OverridesParser.create()
    parsed: dict[str, Override] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise BadInputError(f"{text!r} is not KEY=VALUE (null is the value that unsets)")
        if key == "env.task" and value[0] not in "['\"":  # Hydra would run once for each name
            text = f"{key}=[{value}]"
        try:
            item = parser.parse_override(text)
        except HydraException:
            remedy = f"cannot be read: put special characters in quotes, {key}=\"'...'\""
            if (second := _SECOND_SETTING.search(value)) is not None:
                first = f"{key}={value[: second.start()]}"
                remedy = (
                    f"is two settings in one item: write {first!r} and {second[1]!r}, each an item "
                    "of its own"
                )
            raise BadInputError(f"{text!r} {remedy}") from None
        if item.type != OverrideType.CHANGE or item.package is not None:
            raise BadInputError(f"{text!r} must be a plain KEY=VALUE, without + ~ or @")
        if item.is_sweep_override():
            raise BadInputError(
                f"{text!r} names several values: one run takes one, a list is [a,b]"
            )
        if item.key_or_group in parsed:
            raise BadInputError(f"{item.key_or_group} is given twice: {text!r} too")
        parsed[item.key_or_group] = item
    return parsed


def read_preset(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the env of a preset, or of a user's file, and what the file says by section.

    The env is in a list `defaults`, in `env: name: gsm8k`, or in `env: gsm8k` as a person writes
    it.
    """
    file = Path(name) if name.endswith(_FILES) else keys.CONF / "preset" / f"{name}.yaml"
    try:
        settings = read_yaml(file, follow=True)
    except FileNotFoundError:
        hint = nearest(name, keys.PRESETS)
        raise BadInputError(f"preset={name}: there is no such file{hint}") from None
    except (OSError, ValueError) as error:
        raise BadInputError(in_one_line(f"preset={name} cannot be read: {error}")) from None
    if not isinstance(settings, dict):
        raise BadInputError(f"preset={name} holds no settings: SECTION: and NAME: VALUE below it")
    _refuse_resolvers(settings)
    match settings.pop("defaults", None):
        case None | []:
            env = DEFAULT_ENV
        case [{"override /env": name_of_env}]:
            env = str(name_of_env)
        case _:
            raise BadInputError(f"preset={name}: `defaults` may only hold `override /env: NAME`")
    section = settings.get("env")
    if isinstance(section, str):
        env = section
        settings["env"] = {}
    elif isinstance(section, dict):
        env = str(section.pop("name", env))
    keys.check_choice("env", env)
    return env, settings


def _start(preset: str, chosen: str | None) -> tuple[str, dict[str, Any]]:
    """Returns the env, and the defaults under the settings of a preset.

    Under another env than the preset's only the user's own reward stays of what it says of `env`: a
    prompt template or a score of the same name is not the same thing.
    """
    env, changes = read_preset(preset)
    if chosen is not None and chosen != env:
        section = changes.get("env")
        if isinstance(section, dict):
            changes["env"] = {key: section[key] for key in section if key.startswith("reward")}
        env = chosen
    settings = RunConfig(env=ENVS[env]()).model_dump(mode="json", exclude={"preset"})
    for name, value in changes.items():
        are_sections = isinstance(value, dict) and isinstance(settings.get(name), dict)
        settings[name] = settings[name] | value if are_sections else value
    return env, settings


def _text(item: Override) -> str:
    """Returns the value as the user wrote it, without quotes around it."""
    value = item.value()
    return value if isinstance(value, str) else str(item.input_line).partition("=")[2].strip()


def _merge(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with other values, and with what `${...}` names."""
    try:
        config = OmegaConf.create(dict(settings))
        for key, value in values.items():
            OmegaConf.update(config, key, value, merge=True)
        _refuse_resolvers(OmegaConf.to_container(config))
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return cast("dict[str, Any]", resolved)
    except OmegaConfBaseException as error:
        raise BadInputError(in_one_line(error)) from None


def _refuse_resolvers(tree: object) -> None:
    """Refuses `${oc.env:NAME}` and its kin: a file of somebody else could read a secret by it.

    `${data.seed}`, the value of another setting, may stand.
    """
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for item in tree:
            _refuse_resolvers(item)
    elif isinstance(tree, str) and "${" in _OF_ANOTHER_SETTING.sub("", tree):
        raise BadInputError(
            f"{in_one_line(tree)!r} is refused: in a value ${{...}} may name another setting, "
            "${SECTION.NAME}, and nothing of the environment, which may be a secret"
        )


def _validate(settings: dict[str, Any], given: Mapping[str, str], env: str) -> RunConfig:
    """Returns the models, or one line about the first mistake.

    Hydra reads `run_id=007` as a number: of a text, what the user wrote (`given`) counts.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    numbers = (one for one in wrong if one["type"] in _TEXTS and one["input"] is not None)
    misread = [key for one in numbers if (key := key_of(one)) in given]
    if not misread:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadInputError(explain(wrong[0], env) + more)
    for key in misread:
        section, _, name = key.rpartition(".")
        (settings[section] if section else settings)[name] = given[key]
    return _validate(settings, {k: v for k, v in given.items() if k not in misread}, env)
