"""The page of `--json`: the fields of each command's answer."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from flows.cli import answers
from flows.cli.commands import COMMANDS
from flows.cli.explain import docstrings

_JSON: Final = """\
# Answers for programs: `--json`

<!-- written by `python -m tests.support.reference_pages` from flows/cli/answers.py -->

For scripts and dashboards. With `--json` these commands print one JSON object on standard output
and nothing else; progress, warnings and errors go to standard error.
Exit codes are those of every command: 0 fine, 1 failed or stopped, 2 bad input.

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


def escaped(text: str) -> str:
    """Returns a text whose <tags> outside of code are no HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda match: match[1] or r"\<", text)


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
        *(f"| `{field}` | {kind} | {escaped(text)} |" for field, kind, text in _fields(model, "")),
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
