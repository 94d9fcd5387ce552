"""The commands `explain` and `config`: what a setting means, its bounds, presets, name in verl."""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, Final

from pydantic import BaseModel

from flows.cli.answers import Setting
from flows.cli.reply import give
from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.settings.compose import compose, read_preset
from flows.settings.keys import CHOICES, CONF, PRESETS, check_choice, check_key, setting_of
from rl_core.config.mistakes import of_another_env
from rl_core.config.run import RunConfig
from rl_core.config.unread import unread_settings
from rl_core.envs import ENVS
from rl_core.envs.text_env import TextEnv
from rl_core.runs.settings_file import leaves, settings_as_yaml
from rl_core.section import Section
from rl_core.system.words import LINES, in_one_line, printable
from rl_core.tracking.metric_table import find_metrics
from tasks.importers.verl_table import NAMES, meaning

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
    "object": "a mapping, {NAME: VALUE}",
}


def explain(words: Sequence[str]) -> None:
    """Explains one setting, a group of them, or a metric."""
    if not words:
        raise BadInputError("explain takes a KEY, as actor.lr, or KEY=VALUE (config lists all)")
    key = words[0].partition("=")[0]
    facts: dict[str, Any] = {}
    texts: list[str] = []
    try:
        for text in _texts(words, facts):
            say(text)
            texts.append(text)
    finally:
        give(settings=find_settings(key) or _with_word(key), text="\n".join(texts), **facts)


def _texts(words: Sequence[str], facts: dict[str, Any]) -> Iterator[str]:
    """Yields what there is to say, and adds to the facts the values in force, and what is idle."""
    key, equals, value = words[0].partition("=")
    others = words[1:]
    for env in (word.removeprefix("env=") for word in words if word.startswith("env=")):
        check_choice("env", env)  # of a module of the user: its settings are known from here on
    ours = NAMES.get(key, key)
    settings = find_settings(key)
    if not settings and (reason := meaning(key, "")) is not None:
        yield f"{key}: verl's, without a meaning here: {reason[0]}"
        return
    if key in CHOICES:
        yield from _choices(key)
    elif not equals and not settings and (lines := [*_about_word(key), *_about_metrics(key)]):
        yield "\n".join(lines)
    elif settings and not equals and others:
        yield from _in_force(settings, compose(others), facts)
    else:
        if not settings:
            check_key(key)  # names the nearest
        if ours != key:
            yield f"verl's {key} is called {ours} here"
        yield "\n\n".join(map(in_words, settings))
    if equals:
        yield from _whether_allowed(f"{ours}={value}", others, settings, facts)


def _whether_allowed(
    word: str, others: Sequence[str], settings: Sequence[Setting], facts: dict[str, Any]
) -> Iterator[str]:
    envs = {setting.env for setting in settings}
    is_open = len(envs) == 1 and not any(w.startswith(("env=", "preset=")) for w in others)
    others = [*(f"env={env}" for env in envs if env and is_open), *others]
    config = compose([word, *others])
    context = [f"preset={config.preset}", *(w for w in others if not w.startswith("preset="))]
    yield f"\n{word} is allowed with {' '.join(context)}"
    key, _, value = word.partition("=")
    facts["unread"] = unread_settings(config, {key: value})
    yield from (f"but {sentence}" for sentence in facts["unread"])


def print_config(words: Sequence[str]) -> None:
    """Prints the resolved settings as YAML."""
    text = settings_as_yaml(compose(words))
    sys.stdout.write(printable(text, keep=LINES) if sys.stdout.isatty() else text)


def _about_word(word: str) -> list[str]:
    """Returns what a word means that is no setting: a preset, an env, a value, a part of names."""
    if word in PRESETS:
        env, settings = _presets()[word]
        sets = [f"  {key:32} {_text(value)}" for key, value in settings.items()]
        what = _wrapped(_comment_of(word), "  ")
        return [f"preset={word}", *what, f"  it sets, under env={env}:", *sets]
    if word in ENVS:
        what = _wrapped(in_one_line(inspect.getdoc(ENVS[word]) or ""), "  ")
        shared = {f"env.{name}" for name in TextEnv.model_fields}
        special = (s for s in all_settings() if s.env == word and s.key not in shared)
        return [f"env={word}", *what, *map(_in_a_line, special)]
    matches = _with_word(word)
    if len(matches) == 1 and word in matches[0].choices:
        return [f"{word} is a value of {matches[0].key}:", in_words(matches[0])]
    return list(dict.fromkeys(map(_in_a_line, matches)))


def _with_word(word: str) -> list[Setting]:
    """Returns the settings that take a word, and those with it in their names."""
    takes = [s for s in all_settings() if word in s.choices]
    return takes + [s for s in all_settings() if word.lower() in s.key and s not in takes]


def _about_metrics(word: str) -> list[str]:
    """Returns what is known of the metrics with that name, or with the word as a part of theirs."""
    return [
        _described(
            f"{metric.name}  (a metric)",
            metric.means,
            {
                "unit": metric.unit,
                "good": metric.good,
                "logged": metric.when and "needs " + metric.when,
                "verl": metric.verl,
            },
        )
        for metric in find_metrics(word)
    ]


def _in_a_line(setting: Setting) -> str:
    return f"{setting.key:32} {setting.meaning.partition('. ')[0].splitlines()[0]}"


def _comment_of(preset: str) -> str:
    lines = (CONF / "preset" / f"{preset}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("# ") for line in takewhile(lambda x: x[:1] == "#", lines))


def _choices(group: str) -> Iterator[str]:
    if group == "preset":
        yield "preset\n  A file of settings to start from; preset=FILE.yaml takes one of your own."
        for name in PRESETS:
            first = _comment_of(name).partition(". ")[0].removesuffix(".")
            yield "\n".join(_wrapped(f"{first}.", f"  {name:20} ", " " * 23))
    else:
        yield "env\n  The family of problems; env=NAME takes its defaults for all of env.*"
        yield f"  allowed   {' or '.join(CHOICES['env'])}"


def _in_force(
    settings: Sequence[Setting], config: RunConfig, facts: dict[str, Any]
) -> Iterator[str]:
    values = dict(leaves(config.model_dump(mode="json")))
    of_this_env = [setting for setting in settings if setting.env in (None, config.env.name)]
    if not of_this_env:
        raise BadInputError(of_another_env(settings[0].key, config.env.name))
    facts["values"] = {setting.key: values[setting.key] for setting in of_this_env}
    for setting in of_this_env:
        yield (
            f"{in_words(setting)}\n  {'here':9} {json.dumps(values[setting.key])} with "
            f"preset={config.preset}"
        )


@cache
def _presets() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns of each preset its env, and what it sets by dotted key."""
    presets = ((name, *read_preset(name)) for name in PRESETS)
    return {name: (env, dict(leaves(settings))) for name, env, settings in presets}


@cache
def all_settings() -> tuple[Setting, ...]:
    """Returns every setting, in the order of the models; those of all envs."""
    return tuple(_settings_of(RunConfig, "", None))


def find_settings(key: str) -> list[Setting]:
    """Returns the settings of that name (ours or verl's) in all envs, or those of a group."""
    ours = setting_of(NAMES.get(key, key))
    return [s for s in all_settings() if f"{s.key}.".startswith(f"{ours}.")]


def in_words(setting: Setting) -> str:
    """Returns all that is known of a setting, one fact per line."""
    only = f"  (env={setting.env})" if setting.env else ""
    return _described(
        f"{setting.key}{only}",
        setting.meaning,
        {
            "allowed": setting.allowed,
            "default": setting.default,
            "presets": ", ".join(f"{name} {value}" for name, value in setting.presets.items()),
            "verl": ", ".join(setting.verl),
        },
    )


def _described(name: str, meaning: str, facts: Mapping[str, str | None]) -> str:
    """Returns a name, what it means, and the facts that are known of it."""
    lines = [name, *_wrapped(meaning, "  ")]
    for fact, value in facts.items():
        lines += _wrapped(value or "", f"  {fact:9} ", " " * 12)
    return "\n".join(lines)


def _settings_of(model: type[BaseModel], prefix: str, env: str | None) -> Iterator[Setting]:
    schema = model.model_json_schema()["properties"]
    words = docstrings(model, Section)
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if key == "env":
            for name_of_env, one in ENVS.items():
                yield from _settings_of(one, "env.", name_of_env)
        elif inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
            yield from _settings_of(field.annotation, f"{key}.", env)
        else:
            presets = {
                preset: _text(values[key])
                for preset, (its_env, values) in _presets().items()
                if key in values and env in (None, its_env)
            }
            yield Setting(
                key=key,
                env=env,
                meaning=words.get(name, ""),
                allowed=_allowed(schema[name]),
                default=_text(schema[name].get("default")),
                presets=presets,
                verl=tuple(verl for verl, ours in NAMES.items() if ours == key),
            )


def docstrings(model: type[BaseModel], until: type[BaseModel]) -> dict[str, str]:
    """Returns the words below each field of a model and of those that it derives from.

    Read here: pydantic's `use_attribute_docstrings` would read the source at each start.
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__[: model.__mro__.index(until)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                paragraphs = inspect.cleandoc(ast.literal_eval(after.value)).split("\n\n")
                texts[ast.unparse(field.target)] = "\n".join(map(in_one_line, paragraphs))
    return texts


def _allowed(schema: Mapping[str, Any]) -> str:
    """Returns a type and its bounds as text, from a field's JSON schema."""
    if "description" in schema:
        return str(schema["description"])
    if "anyOf" in schema:
        return " or ".join(_allowed(part) for part in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        *others, last = map(_text, schema.get("enum", [schema.get("const")]))
        return f"{', '.join(others)} or {last}" if others else last
    if schema.get("type") == "array":
        item = _allowed(schema["items"])
        return f"a list of {item if 'enum' in schema['items'] else item.removeprefix('a ') + 's'}"
    kind = "a path" if schema.get("format") == "path" else _KINDS[schema["type"]]
    bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    return f"{kind} {', '.join(bounds)}" if bounds else kind


def _wrapped(text: str, start: str, then: str | None = None) -> list[str]:
    shape = textwrap.TextWrapper(_WIDTH, start, start if then is None else then)
    return [line for paragraph in text.splitlines() for line in shape.wrap(paragraph)]


def _text(value: Any) -> str:
    """Returns a value as it is written in an override."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
