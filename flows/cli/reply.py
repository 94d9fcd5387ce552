"""`--json`: what a command answers as one JSON object, alone on standard output.

A command gives its facts by `give`, in one place and before it may fail; what it says to a person
is not shown then, and its progress goes to standard error. `answers.py` holds the schemas.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from rl_core.system.redaction import redact, redact_all
from rl_core.system.words import cut

_LONGEST_TEXT: Final = 20_000
"""Characters: more of a text, such as a stranger's run may hold, is cut."""
_ARGUMENT: Final = re.compile(r"argument (\S+): ")
_UNKNOWN: Final = re.compile(r"unknown (\w+) '([^']*)'")
_SETTING: Final = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)=([^\s,;]*[^\s,;:]|)")
_HINT: Final = "did you mean "
_ENDS: Final = " :;"
_GIVEN: Final[ContextVar[dict[str, Any] | None]] = ContextVar("given", default=None)


def give(**facts: object) -> None:
    """Keeps the facts of a command's answer, the fields of its model in `answers.py`."""
    _GIVEN.set(facts)


@contextmanager
def only_json() -> Iterator[None]:
    """Keeps standard output free for the reply: of this process, and of those that it starts."""
    _GIVEN.set(None)
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def reply(command: str | None, model: str, exit_code: int, message: str) -> str:
    """Returns the reply as a line of JSON in ASCII: no NaN, no secret, texts of bounded length.

    `model` is the name of the answer's model.
    """
    from flows.cli import answers  # the models, for programs only

    facts = _GIVEN.get()
    answer = None if facts is None else getattr(answers, model).model_validate(facts)
    whole = answers.Reply(
        command=command,
        exit_code=exit_code,
        answer=answer and answer.model_dump(mode="json"),
        error=facts_of(message) if exit_code else None,
    )
    tree = _plain(whole.model_dump(mode="json"))
    text = redact(json.dumps(tree, allow_nan=False))
    try:
        json.loads(text)
    except ValueError:  # a secret that took a bracket or a quote with it
        text = json.dumps(redact_all(tree), allow_nan=False)
    return f"{text}\n"


def facts_of(message: str) -> dict[str, str | None]:
    """Returns an error's parts, by the form of our messages: `KEY=VALUE LIMIT: REMEDY`."""
    first, _, detail = message.strip().partition("\n")
    key: str | None = None
    value: str | None = None
    rest = first
    if argument := _ARGUMENT.match(first):
        key = argument[1]
        rest = first[argument.end() :]
    elif unknown := _UNKNOWN.search(first):
        key, value = unknown.groups()
        if key == "setting":
            key = value
            value = None
        rest = first[unknown.end() :]
    elif setting := _SETTING.search(first):
        key, value = setting.groups()
        rest = first.removeprefix(setting[0])
    limit, hint, nearest = rest.partition(_HINT)
    remedy = hint + nearest
    if not hint and ": " in rest.lstrip(_ENDS):
        limit, _, remedy = rest.rpartition(": ")
    return {
        "message": first,
        "key": key,
        "value": value,
        "limit": (limit.strip(_ENDS) or None) if key else None,
        "remedy": remedy or None,
        "detail": detail or None,
    }


def _plain(value: Any) -> Any:
    """Returns a tree that any JSON reader takes."""
    match value:
        case dict():
            return {_plain(str(key)): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case float():
            return value if math.isfinite(value) else None
        case str():
            return cut(value.encode(errors="replace").decode(), _LONGEST_TEXT)
    return value
