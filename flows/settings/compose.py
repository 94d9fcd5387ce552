"""Settings: preset and KEY=VALUE overrides -> one validated `RunConfig` (the only hydra import).

Hydra reads and merges; the models in `rl_core.config.run` decide. Every mistake becomes one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic_core import ErrorDetails

# Told apart and looked up without Hydra; whoever composes finds them here.
from flows.errors import SettingsError as SettingsError
from flows.settings.keys import (
    CHOICES,
    CONF,
    check_choice,
    check_env,
    check_key,
    known_keys,
    nearest,
    of_another_env,
)
from flows.settings.keys import PresetName as PresetName
from rl_core.config.run import RunConfig
from rl_core.envs import DEFAULT_ENV, ENVS
from rl_core.runs.settings_file import leaves
from rl_core.system.words import in_one_line

DEFAULT_PRESET: Final = "quickstart"
_FILE: Final = "from-a-file"
_ANOTHER: Final = re.compile(r"^[^\s'\"\[{]+\s+[a-z_]+(\.\w+)*=\S")
"""A value, and another setting behind it."""
_OF_THE_RUN: Final = ("preset", "run_id", "storage.root", "storage.url")
"""Differ between runs of the same settings."""
_OF_ANOTHER_SETTING: Final = re.compile(r"\$\{[\w.]*\}")


def compose(
    overrides: Sequence[str] = (),
    *,
    base: RunConfig | None = None,
    arguments: Sequence[str] = (),
) -> RunConfig:
    """Returns the settings of a run.

    Args:
        overrides: `KEY=VALUE`, `preset=NAME`, `env=NAME` in Hydra's grammar; lists as `[a,b]`.
        base: settings of an existing run, to change instead of a preset's; its preset and env stay.
        arguments: keys that the command takes beside settings, to be suggested like these.

    Raises:
        SettingsError: unknown key or choice, wrong type, out of range, impossible combination.
    """
    parsed = _parse(overrides)
    chosen = {item.key_or_group: _choice(item) for item in parsed if item.key_or_group in CHOICES}
    if base is not None and chosen:
        raise SettingsError(f"{next(iter(chosen))} cannot change: these are settings of a run")
    values = [item for item in parsed if item.key_or_group not in CHOICES]
    groups = [f"{group}={_stored(name)}" for group, name in chosen.items()]
    given = {item.key_or_group: _text(item) for item in values}
    for key in given:
        check_key(key, arguments)
    of_one_env = [key for key in given if not all(key in known_keys(env) for env in ENVS)]
    if of_one_env:  # Hydra would refuse them in its own words
        env = base.env.name if base else _merge(groups)["env"]["name"]
        check_env(of_one_env, env)
    settings = _merge(groups, values, base)
    if "env" in chosen:
        preset = [text for text in groups if not text.startswith("env=")]
        if _merge(preset)["env"]["name"] != chosen["env"]:
            settings["env"] = _another_env(chosen["env"], settings["env"], given)
    settings["preset"] = base.preset if base else chosen.get("preset", DEFAULT_PRESET)
    return _validate(settings, given)


def own_settings(config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Returns what differs from the preset's own settings: by name, its value and the run's.

    Where both belong to different envs, what the preset's lacks is None there, and what the run's
    lacks is left out. A preset that cannot be found any more counts as the defaults.

    Args:
        config: the settings of a run.
    """
    own = dict(leaves(config.model_dump(mode="json")))
    try:
        preset = compose([f"preset={config.preset}"])
    except SettingsError:
        preset = RunConfig()
    theirs = dict(leaves(preset.model_dump(mode="json")))
    return {
        key: (theirs.get(key), value)
        for key, value in own.items()
        if key not in _OF_THE_RUN and theirs.get(key) != value
    }


def to_yaml(config: RunConfig) -> str:
    """Returns the resolved settings as YAML, in the order of the models."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))


def _parse(overrides: Sequence[str]) -> list[Override]:
    """Returns the overrides, each a plain KEY=VALUE that is given once."""
    parser = OverridesParser.create()
    parsed: dict[str, Override] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if _ANOTHER.search(value):
            raise SettingsError(f"{text!r} holds several settings: one setting per item")
        if not equals or not key.strip() or not value.strip():
            raise SettingsError(f"{text!r} is not KEY=VALUE (null is the value that unsets)")
        if key == "env.task" and value[0] not in "['\"":  # Hydra would run once for each name
            text = f"{key}=[{value}]"
        try:
            item = parser.parse_override(text)
        except HydraException:
            raise SettingsError(
                f"{text!r} cannot be read: put special characters in quotes, {key}=\"'...'\""
            ) from None
        if item.type != OverrideType.CHANGE or item.package is not None:
            raise SettingsError(f"{text!r} must be a plain KEY=VALUE, without + ~ or @")
        if item.is_sweep_override():
            raise SettingsError(
                f"{text!r} names several values: one run takes one, a list is [a,b]"
            )
        if item.key_or_group in parsed:
            raise SettingsError(f"{item.key_or_group} is given twice: {text!r} too")
        parsed[item.key_or_group] = item
    return list(parsed.values())


def _choice(item: Override) -> str:
    """Returns the chosen name of a group, if there is such a one."""
    group, name = item.key_or_group, _text(item)
    if group == "preset" and name.endswith((".yaml", ".yml")):
        return name
    check_choice(group, name)
    return name


def _stored(name: str) -> str:
    """Returns the name under which Hydra finds a preset; a file of the user's becomes one."""
    if not name.endswith((".yaml", ".yml")):
        return name
    try:
        settings = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(in_one_line(f"preset={name} cannot be read: {error}")) from None
    if not isinstance(settings, dict):
        raise SettingsError(f"preset={name} holds no settings: SECTION: and NAME: VALUE below it")
    _refuse_resolvers(settings)
    ConfigStore.instance().store(
        group="preset", name=_FILE, node=_choosing_env(settings), package="_global_", provider=name
    )
    return _FILE


def _choosing_env(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a file's settings with the env that they name as Hydra wants it chosen.

    `config` prints it as `env: name: gsm8k`, a person may write `env: gsm8k`, a preset has a list
    `defaults`.
    """
    chosen = dict(settings)
    for item in chosen.get("defaults") or ():
        if isinstance(item, dict):
            check_choice("env", str(item.get("override /env", DEFAULT_ENV)))
    env = chosen.get("env")
    if isinstance(env, str):
        del chosen["env"]
    elif isinstance(env, dict) and "name" in env:
        chosen["env"] = {key: value for key, value in env.items() if key != "name"}
        env = env["name"]
    else:
        return chosen
    check_choice("env", str(env))
    return {"defaults": [*chosen.pop("defaults", ()), {"override /env": env}], **chosen}


def _text(item: Override) -> str:
    """Returns the value as the user wrote it, without quotes around it."""
    value = item.value()
    raw = str(item.input_line).partition("=")[2].strip()
    return value if isinstance(value, str) else raw


def _merge(
    groups: Sequence[str], values: Sequence[Override] = (), base: RunConfig | None = None
) -> dict[str, Any]:
    """Returns the preset and the env of `groups`, or `base`, with other values, as plain values."""
    try:
        if base is not None:
            config = OmegaConf.create(base.model_dump(mode="json", exclude={"preset"}))
            OmegaConf.set_struct(config, True)
        elif f"preset={_FILE}" in groups:
            config = _composed.__wrapped__(tuple(groups), tuple(ENVS))
        else:
            config = deepcopy(_composed(tuple(groups), tuple(ENVS)))
        for item in values:  # as Hydra does it itself, a hundred times slower
            OmegaConf.update(config, item.key_or_group, item.value(), merge=True)
        _refuse_resolvers(OmegaConf.to_container(config))
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(in_one_line(error)) from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@lru_cache
def _composed(groups: tuple[str, ...], envs: tuple[str, ...]) -> DictConfig:
    """Returns Hydra's composition of a preset and an env."""
    store = ConfigStore.instance()
    for name in envs:
        store.store(group="env", name=name, node=ENVS[name]().model_dump(mode="json"))
    defaults = ["_self_", {"env": DEFAULT_ENV}, {"preset": DEFAULT_PRESET}]
    node = RunConfig().model_dump(mode="json", exclude={"env", "preset"})
    store.store(name="countdown_train", node={"defaults": defaults, **node})
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        composed: DictConfig = hydra_compose("countdown_train", overrides=list(groups))
    return composed


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
        raise SettingsError(
            f"{in_one_line(tree)!r} is refused: in a value ${{...}} may name another setting, "
            "${SECTION.NAME}, and nothing of the environment, which may be a secret"
        )


def _another_env(env: str, merged: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the section `env` where env=NAME replaces the env that the preset was written for.

    What the preset says of its own env says nothing about another: a prompt template or a score of
    the same name is not the same thing. Only the user's own reward stays.

    Args:
        env: the chosen one.
        merged: the section as Hydra merges it, with the settings of both.
        given: what the user wrote per key.
    """
    stays = {key for key in merged if key.startswith("reward") or f"env.{key}" in given}
    own: dict[str, Any] = ENVS[env]().model_dump(mode="json")
    return own | {key: merged[key] for key in stays}


def _validate(settings: dict[str, Any], given: Mapping[str, str]) -> RunConfig:
    """Returns the models, or one line about the first mistake.

    Args:
        settings: merged, not yet checked.
        given: what the user wrote per key. Hydra reads `run_id=007` as a number: where the setting
            is a text, the text stands.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    misread = [item for item in wrong if item["type"] == "string_type" and _key(item) in given]
    if not misread:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise SettingsError(_explain(wrong[0], _env_name(settings)) + more)
    for item in misread:
        _put(settings, _key(item), given[_key(item)])
    return _validate(settings, {k: v for k, v in given.items() if k not in map(_key, misread)})


def _env_name(settings: Mapping[str, Any]) -> str:
    """Returns the env that merged settings name, the default one where they name none."""
    env = settings.get("env")
    name = str(env.get("name")) if isinstance(env, dict) else ""
    return name if name in ENVS else DEFAULT_ENV


def _put(settings: dict[str, Any], key: str, value: str) -> None:
    *path, last = key.split(".")
    for part in path:
        settings = settings[part]
    settings[last] = value


def _key(error: ErrorDetails) -> str:
    """Returns the dotted key: without the index in a list."""
    return ".".join(part for part in error["loc"] if isinstance(part, str))


_LIMITS: Final = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_pattern_mismatch": "must match {pattern}",
    "tuple_type": "must be a list, [a,b]",
    "path_type": "must be a path",
    "model_type": "is a group of settings, NAME: VALUE below it",
    "model_attributes_type": "is a group of settings, NAME: VALUE below it",
    "literal_error": "must be {expected}",
}


def _explain(error: ErrorDetails, env: str) -> str:
    """Returns `key=value: limit` for one of pydantic's errors, or our own validator's words."""
    if error["type"] == "value_error":
        return in_one_line(error["msg"].removeprefix("Value error, "))
    key, value = _key(error), error["input"]
    if error["type"] == "extra_forbidden":
        if "." in str(error["loc"][-1]):
            section, _, name = key.partition(".")
            return f"in a file {key!r} is written as `{section}:` and `{name}:` below it"
        if any(key in known_keys(name) for name in ENVS):
            return of_another_env(key, env)
        return f"unknown setting {key!r}{nearest(key, known_keys(env))}"
    limit = _LIMITS.get(error["type"])
    context = error.get("ctx", {})
    said = limit.format(**context) if limit is not None else in_one_line(error["msg"])
    if error["type"] == "literal_error" and isinstance(value, str):
        said += nearest(value, context["expected"].replace(" or ", ", ").strip("'").split("', '"))
    return f"{key}={value}: {said}"
