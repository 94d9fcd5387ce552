"""Reads the saved questions and checks of `sql/`: their parameters, description and SELECT."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from rl_core.system.words import did_you_mean

SQL_FOLDER = Path(__file__).resolve().parents[2] / "sql"

Value = int | float | str | bool

_HEADER_PARAMETER = re.compile(
    r"^\$(?P<name>\w+): (?P<kind>\w+(\|\w+)*) = (?P<default>\S+)(?:\s+\(.*\))?$"
)
_EXAMPLE = "Example: "
_KINDS: dict[str, Callable[[Value], Value]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: {"true": True, "false": False}[str(text).lower()],
}


@dataclass(frozen=True)
class Parameter:
    """One `$name` of a saved query, from its header: `-- $name: kind = default (help)`."""

    name: str
    kind: str
    default: Value

    def read(self, text: Value) -> Value:
        """Returns `text` as a value of this parameter's kind; ValueError if it is none."""
        choices = self.kind.split("|") if "|" in self.kind else []
        try:
            value = text if str(text) in choices else _KINDS[self.kind](text)
        except (KeyError, ValueError) as error:
            why = (
                f": there are {', '.join(choices)}" if choices else f" does not read as {self.kind}"
            )
            raise ValueError(f"parameter {self.name}={text}{why}") from error
        if self.name == "steps_per_row" and int(value) < 1:
            raise ValueError(f"parameter {self.name}={text} must be at least 1")
        return value


@dataclass(frozen=True)
class Query:
    """One saved question: a file of `sql/`."""

    name: str
    topic: str  # its folder: rollouts, metrics, evaluation or runs
    description: str  # what a row is, and what to ask it for
    example: str  # a command line that asks it; empty for a data check
    parameters: tuple[Parameter, ...]
    sql: str

    def bind(self, arguments: Mapping[str, Value]) -> dict[str, Value]:
        """Returns each parameter's value; ValueError if one is unknown or of another kind."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in (name for name in arguments if name not in known):
            usage = ", ".join(f"{p.name}={p.default}" for p in self.parameters) or "none"
            raise ValueError(
                f"sql {self.name} has no parameter {name!r}{did_you_mean(name, known)} "
                f"(it takes: {usage})"
            )
        return {
            name: parameter.read(arguments.get(name, parameter.default))
            for name, parameter in known.items()
        }


@cache
def list_queries() -> tuple[Query, ...]:
    """Returns all saved queries, by topic and name."""
    files = sorted(SQL_FOLDER.glob("*/*.sql"))
    return tuple(load_check(f) for f in files if f.parent.name not in ("views", "checks"))


def load_query(name: str) -> Query:
    """Returns the saved query called `name`; ValueError with the nearest name if there is none."""
    queries = {query.name: query for query in list_queries()}
    if name not in queries:
        raise ValueError(
            f"no saved query {name!r}{did_you_mean(name, queries)}; "
            "`countdown-train sql --list` lists all"
        )
    return queries[name]


def load_check(path: Path) -> Query:
    """Returns a file of `sql/`: lines of comment, then parameter lines, then the SELECT."""
    sql = path.read_text(encoding="utf-8")
    example = ""
    description: list[str] = []
    parameters: list[Parameter] = []
    for line in takewhile(lambda line: line.startswith("--"), sql.splitlines()):
        text = line.removeprefix("--").strip()
        if text.startswith(_EXAMPLE):
            example = text.removeprefix(_EXAMPLE)
        elif not text.startswith("$"):
            description.append(text)
        elif (match := _HEADER_PARAMETER.match(text)) is None:
            raise ValueError(f"{path}: {line!r} does not read as `-- $name: kind = default (help)`")
        else:
            parameter = Parameter(match["name"], match["kind"], match["default"])
            parameters.append(replace(parameter, default=parameter.read(parameter.default)))
    topic = path.parent.name
    return Query(path.stem, topic, " ".join(description), example, tuple(parameters), sql)
