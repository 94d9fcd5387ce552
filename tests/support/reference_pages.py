"""Writes the pages of docs/ that the code itself could tell: settings, verl's names, `--json`.

python -m tests.support.reference_pages
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

import flows.settings
from flows.cli import answers
from flows.cli.commands import COMMANDS
from flows.cli.explain import Setting, all_settings, docstrings
from flows.settings.keys import ENVS
from rl_core.config.run import RunConfig
from tasks.importers.verl_table import NEAREST, SAME, TABLE, VALUES

PRESETS: Final = Path(flows.settings.__path__[0]) / "conf" / "preset"
DOCS: Final = Path(__file__).parents[2] / "docs"
_WIDTH: Final = 110
_CODE: Final = re.compile(r"`[^`]*`")
_SETTINGS: Final = """\
# Settings

<!-- written by `python -m tests.support.reference_pages` from docstrings in rl_core/config/ -->

Each setting: its meaning, what is allowed, its default, presets that set it, its names in verl.
The same words are in the terminal: `countdown-train explain actor.lr` explains one setting.

Settings are written as `KEY=VALUE` behind a command.
`preset=NAME` names a file of settings to start from, and `preset=FILE.yaml` takes one of your own.
What is wrong is said in one line with the nearest valid key, before anything starts.
"""
_VERL: Final = """\
# verl's and TinyZero's settings, key by key

<!-- written by `python -m tests.support.reference_pages` from tasks/importers/verl.yaml -->

What `import` makes of each key; [coming-from.md](coming-from.md) tells the rest.
`countdown-train explain actor_rollout_ref.actor.optim.lr` answers for a key of verl's, too.
"""
_JSON: Final = """\
# Answers for programs: `--json`

<!-- written by `python -m tests.support.reference_pages` from flows/cli/answers.py -->

For scripts and dashboards. With `--json` these commands print one JSON object on standard output
and nothing else; progress, warnings and errors go to standard error.
Exit codes are as ever: 0 fine, 1 failed or stopped, 2 bad input.

```sh
countdown-train runs --json status=failed,interrupted --last 20
countdown-train preflight --json preset=tinyzero-3b
```

What is refused has its parts in the object, here `explain actor.lr=-1 --json`:

```
"error": {"message": "actor.lr=-1: Input should be greater than 0",
          "key": "actor.lr", "value": "-1", "limit": "Input should be greater than 0",
          "remedy": null, "detail": null}
```

The text is ASCII: other characters are escaped. A number that is not finite is `null`, a text of
more than 20,000 characters ends with `…`, and credentials are `***`, as in the log.
`sql` with `--format json` has the rows of any question.
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its file name."""
    return {
        "settings.md": settings_page(),
        "verl-settings.md": verl_page(),
        "json.md": json_page(),
    }


def json_page() -> str:
    """Returns the fields of each command's answer."""
    lines = [_JSON, "## Of every command\n", *_fields_table(answers.Reply)]
    for name, command in COMMANDS.items():
        if command.answer:
            lines += [f"\n## {name}\n", *_fields_table(getattr(answers, command.answer))]
    return "\n".join(lines) + "\n"


def _fields_table(model: type[BaseModel]) -> list[str]:
    return [
        f"{inspect.getdoc(model)}\n",
        "| field | type | meaning |",
        "|---|---|---|",
        *(f"| `{field}` | {kind} | {_escaped(text)} |" for field, kind, text in _fields(model, "")),
    ]


def _fields(model: type[BaseModel], above: str) -> Iterator[tuple[str, str, str]]:
    """Yields each field, `runs[].run_id`, with its type and its meaning."""
    schema = model.model_json_schema(mode="serialization")
    words = docstrings(model, answers.Facts)
    for name, field in schema["properties"].items():
        kind, inner, ending = _kind(field)
        yield f"{above}{name}", kind, words[name]
        if inner:
            yield from _fields(getattr(answers, inner), f"{above}{name}{ending}.")


def _kind(field: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns a type in words, the model in it, and how its fields are reached."""
    if "$ref" in field:
        return "object", field["$ref"].rpartition("/")[2], ""
    if "anyOf" in field:
        first, *_ = field["anyOf"]
        kind, inner, ending = _kind(first)
        return f"{kind} or null", inner, ending
    if field.get("type") == "array":
        kind, inner, _ = _kind(field["items"])
        return f"list of {kind}s", inner, "[]"
    if "additionalProperties" in field:
        of = field["additionalProperties"]
        if of is True:
            return "object", "", ""
        kind, inner, _ = _kind(of)
        return f"object of {kind}s", inner, "{}"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"]), "", ""
    return ("time" if field.get("format") == "date-time" else field.get("type", "any")), "", ""


def settings_page() -> str:
    """Returns all settings, section by section, in the order of the models."""
    lines = [_SETTINGS, "## Presets\n", *map(_preset, sorted(PRESETS.glob("*.yaml"))), ""]
    by_section = groupby(all_settings(), key=lambda one: (one.key.rpartition(".")[0], one.env))
    for (section, env), settings in by_section:
        lines += [*_heading(section, env), *map(_item, settings), ""]
    return "\n".join(lines).rstrip() + "\n"


def _plain(value: object) -> str:
    return json.dumps(value).strip('"')


def verl_page() -> str:
    """Returns verl's keys: those of ours, those that others decide with, and those without."""
    always, since, before = (
        ", ".join(f"`{key}={_plain(value)}`" for key, value in TABLE[name].items())
        for name in ("defaults", "defaults_since", "defaults_before")
    )
    left = _wrapped(
        f"It gets verl's default where ours is another: {always}; if a setting shows that it is of "
        f"April 2025 or later, {since}, else {before}."
    )
    return "\n".join(
        [
            _VERL,
            "## The same meaning\n",
            "`null` and `-1` leave our setting at its default.\n",
            *_table(SAME),
            "\n## The nearest, where other keys decide as well\n",
            *_table(NEAREST),
            "\n## Values\n",
            *_values(),
            "\n## What a script leaves to verl\n",
            *left,
            "\n## What there is not, and what to do instead\n",
            "Asking for one of these is a warning of `import`.\n",
            *_reasons(TABLE["lacking"]),
            "\n## What does nothing here\n",
            "These are left out, whatever their value.\n",
            *_reasons(TABLE["idle"]),
            "",
        ]
    )


def _preset(file: Path) -> str:
    """Returns a preset's name and the comment that its file begins with."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text().splitlines())
    comment = " ".join(line.removeprefix("# ") for line in lines)
    return "\n".join(_wrapped(f"- `{file.stem}`: {_escaped(comment)}"))


def _heading(section: str, env: str | None) -> Iterator[str]:
    if not section:
        yield "## The run\n"
        return
    yield f"## {section}" + (f" (env={env})" if env else "") + "\n"
    model = ENVS[env] if env else RunConfig.model_fields[section].annotation
    assert model is not None
    yield f"{inspect.getdoc(model)}\n"


def _item(setting: Setting) -> str:
    allowed = re.sub(r"(?<=that matches )\S+", r"`\g<0>`", setting.allowed)
    facts = [f"{allowed}; default `{setting.default}`"]
    if setting.presets:
        facts.append("; ".join(f"{name} `{value}`" for name, value in setting.presets.items()))
    if setting.verl:
        facts.append(f"verl: {', '.join(f'`{name}`' for name in setting.verl)}")
    meaning = _escaped(setting.meaning).splitlines()
    first, *more = [*meaning, *(f"({fact})" for fact in facts)]
    lines = _wrapped(f"- `{setting.key}`: {first}")
    return "\n".join([*lines, *(line for text in more for line in _wrapped(text, indent="  "))])


def _table(names: Mapping[str, str]) -> Iterator[str]:
    yield "| verl | here |"
    yield "|---|---|"
    for verl, ours in sorted(names.items(), key=lambda both: (both[1], both[0])):
        yield f"| `{verl}` | `{ours}` |"


def _values() -> Iterator[str]:
    for ours, values in VALUES.items():
        yield "\n".join(_wrapped(f"- `{ours}`: {_pairs(values)}"))


def _pairs(values: Mapping[str, str]) -> str:
    """Returns verl's values, and ours where it is another."""
    return ", ".join(f"`{a}`" + (f" (here `{b}`)" if b != a else "") for a, b in values.items())


def _reasons(reasons: Mapping[str, str]) -> Iterator[str]:
    for reason, patterns in reasons.items():
        keys = ", ".join(f"`{pattern}`" for pattern in patterns.split())
        yield "\n".join(_wrapped(f"- {_escaped(reason)}: {keys}"))


def _escaped(text: str) -> str:
    """Returns a text whose <tags> outside of code are no HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or r"\<", text)


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Returns lines that never break within a code span."""
    whole = _CODE.sub(lambda span: span[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent="  " if indent or text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def main() -> None:
    """Writes the pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
