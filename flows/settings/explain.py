"""What each setting means: its words from the models, its bounds, presets, verl's name, readers."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from flows.settings.keys import CONF, check_key
from rl_core.config.run import RunConfig
from rl_core.envs import DEFAULT_ENV, ENVS
from rl_core.section import Section
from tasks.importers.verl_table import NAMES

_CODE: Final = ("rl_core", "tasks", "flows")
_WIDTH: Final = 100
_BOUNDS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "pattern": "that matches {}",
}
_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "null": "null",
}


@dataclass(frozen=True)
class Setting:
    """One setting, in words."""

    key: str
    env: str | None
    """The env that has it, None for all."""
    meaning: str
    """Its docstring: a sentence or more, one paragraph per line."""
    allowed: str
    """Its type and its bounds."""
    default: str
    presets: Mapping[str, str]
    """What the presets say that set it."""
    verl: tuple[str, ...]
    """Its names in verl."""


@cache
def all_settings() -> tuple[Setting, ...]:
    """Returns every setting, in the order of the models; those of all envs."""
    return tuple(_settings_of(RunConfig, "", None))


def find_settings(key: str) -> list[Setting]:
    """Returns the settings of that name, of every env that has one, or of that group.

    Args:
        key: ours or verl's name of a setting, or `actor` for all of `actor.*`.

    Raises:
        SettingsError: there is no such setting; it names the nearest.
    """
    ours = ours_of(key)
    found = [setting for setting in all_settings() if setting.key == ours]
    found = found or [s for s in all_settings() if s.key.startswith(f"{ours}.")]
    if not found:
        check_key(key, ())
    return found


def containing(word: str) -> list[Setting]:
    """Returns the settings with a word in their names, `lora`, if none is called so."""
    names = {setting.key for setting in all_settings()}
    if any(f"{name}.".startswith(f"{ours_of(word)}.") for name in names):
        return []
    return [setting for setting in all_settings() if word.lower() in setting.key]


def ours_of(key: str) -> str:
    """Returns our name of a setting of verl's, the nearest; any other key as it is."""
    return NAMES.get(key, key)


def in_words(setting: Setting) -> str:
    """Returns all that is known of a setting, one fact per line."""
    only = f"  (env={setting.env})" if setting.env else ""
    presets = ", ".join(f"{name} {value}" for name, value in setting.presets.items())
    facts = {
        "allowed": setting.allowed,
        "default": setting.default,
        "presets": presets,
        "verl": ", ".join(setting.verl),
        "read by": ", ".join(readers(setting.key)),
    }
    lines = [f"{setting.key}{only}"]
    for paragraph in setting.meaning.splitlines():
        lines += textwrap.wrap(paragraph, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    for name, value in facts.items():
        if value:
            lines += textwrap.wrap(
                value, _WIDTH, initial_indent=f"  {name:9} ", subsequent_indent=" " * 12
            )
    return "\n".join(lines)


def yaml_with_words(config: RunConfig) -> str:
    """Returns the resolved settings as YAML that says what each means: a preset file, too."""
    words = {s.key: s for s in all_settings() if s.env in (None, config.env.name)}
    lines: list[str] = []
    for name, value in config.model_dump(mode="json").items():
        if isinstance(value, dict):
            lines += ["", *_comment(inspect.getdoc(type(getattr(config, name))) or ""), f"{name}:"]
            for inner, setting in value.items():
                lines += _setting_lines(words[f"{name}.{inner}"], inner, setting, "  ")
        else:
            lines += _setting_lines(words[name], name, value, "")
    return "\n".join(lines) + "\n"


def readers(key: str) -> list[str]:
    """Returns the modules that read a setting by its name, as far as a look at their code tells."""
    section, _, name = key.rpartition(".")
    namesakes = {s.key for s in all_settings() if s.key.rpartition(".")[2] == name}
    # A section may go by another name; what has two words and no namesake can be nothing else.
    owner = r"\w" if "_" in name and len(namesakes) == 1 else rf"\b{section or 'config'}"
    read = re.compile(rf"{owner}\.{name}\b(?!=)")
    return [
        file
        for file, code in _code().items()
        if read.search(code) and not file.endswith("config.py")  # which only check it
    ]


def _settings_of(model: type[BaseModel], prefix: str, env: str | None) -> Iterator[Setting]:
    schema = model.model_json_schema()["properties"]
    words = _docstrings(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if key == "env":
            for name_of_env, one in ENVS.items():
                yield from _settings_of(one, "env.", name_of_env)
            continue
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
            yield from _settings_of(field.annotation, f"{key}.", env)
            continue
        yield Setting(
            key,
            env,
            words.get(name, ""),
            _allowed(schema[name]),
            _text(schema[name].get("default")),
            _said_by_presets(key, env),
            tuple(verl for verl, ours in NAMES.items() if ours == key),
        )


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Returns the words below each field of a model and of those that it derives from.

    Read from the source here, not by pydantic (`use_attribute_docstrings`), which would read it at
    the start of every command.
    """
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base in (Section, BaseModel) or not issubclass(base, BaseModel):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                paragraphs = inspect.cleandoc(str(after.value.value)).split("\n\n")
                found[field.target.id] = "\n".join(" ".join(p.split()) for p in paragraphs)
    return found


def _allowed(schema: Mapping[str, Any]) -> str:
    """Returns a type and its bounds in words, from a field's JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_allowed(part) for part in schema["anyOf"])
    if "const" in schema:
        return _text(schema["const"])
    if "enum" in schema:
        *others, last = map(_text, schema["enum"])
        return f"{', '.join(others)} or {last}" if others else last
    if schema.get("type") == "array":
        item = _allowed(schema["items"])
        return f"a list of {item if 'enum' in schema['items'] else item.removeprefix('a ') + 's'}"
    kind = "a path" if schema.get("format") == "path" else _KINDS[schema["type"]]
    bounds = [said.format(schema[name]) for name, said in _BOUNDS.items() if name in schema]
    return f"{kind} {', '.join(bounds)}" if bounds else kind


def _said_by_presets(key: str, env: str | None) -> dict[str, str]:
    section, _, name = key.rpartition(".")
    said = {}
    for preset, (its_env, settings) in _presets().items():
        values = settings.get(section, {}) if section else settings
        if name in values and env in (None, its_env):
            said[preset] = _text(values[name])
    return said


@cache
def _presets() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns each preset's env and what its file says, by name."""
    presets = {}
    for file in sorted((CONF / "preset").glob("*.yaml")):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        chosen = [item["override /env"] for item in settings.pop("defaults", ())]
        presets[file.stem] = (chosen[0] if chosen else DEFAULT_ENV, settings)
    return presets


@cache
def _code() -> dict[str, str]:
    """Returns the project's code by file, without the texts in it, which name settings, too."""
    files = {}
    for package in _CODE:
        folder = Path(str(sys.modules[package].__file__)).parent
        for file in sorted(folder.rglob("*.py")):
            code = file.read_text(encoding="utf-8")
            without = re.sub(r'"""[\s\S]*?"""|"[^"\n]*"', _placeholders, code)
            files[f"{package}/{file.relative_to(folder)}"] = without
    return files


def _placeholders(text: re.Match[str]) -> str:
    """Returns what an f-string reads, and nothing of the words around it."""
    return " ".join(re.findall(r"\{([\w.]+)", text[0]))


def _setting_lines(setting: Setting, name: str, value: Any, indent: str) -> list[str]:
    facts = [setting.allowed, f"default {setting.default}"]
    if setting.verl:
        facts.append(f"verl: {', '.join(setting.verl)}")
    comment = _comment(f"{setting.meaning}\n({'; '.join(facts)})", indent)
    written = yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]
    return [*comment, f"{indent}{name}: {written}"]


def _comment(text: str, indent: str = "") -> list[str]:
    lines: list[str] = []
    for paragraph in text.splitlines():
        start = f"{indent}# "
        lines += textwrap.wrap(paragraph, _WIDTH, initial_indent=start, subsequent_indent=start)
    return lines


def _text(value: Any) -> str:
    """Returns a value as it is written in an override."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value)
