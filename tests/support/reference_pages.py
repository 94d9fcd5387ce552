"""Writes the pages of docs/ that are made of the code: settings, names, metrics, commands, fields.

python -m tests.support.reference_pages
"""

import inspect
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby, takewhile
from pathlib import Path
from typing import Final
from unittest import mock

import flows.settings
from flows.cli.commands import COMMANDS, PROGRAM, build_parser
from flows.cli.elsewhere import GROUPS
from flows.cli.explain import Setting, all_settings
from flows.settings.keys import ENVS
from rl_core.config.run import RunConfig
from rl_core.tracking.metric_table import METRICS
from tasks.importers.verl_table import NEAREST, SAME, TABLE, VALUES
from tests.support.algorithm_page import algorithms_page
from tests.support.json_page import escaped, json_page

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
_METRICS: Final = """\
# Metrics

<!-- written by `python -m tests.support.reference_pages` from rl_core/tracking/metrics.yaml -->

Each metric of a run's `metrics.jsonl`, of TensorBoard and of wandb. In the terminal
`countdown-train explain kl` prints the rows whose name has that part.
[SQL](sql.md) reads them from the view `metrics`.

A `*` stands for the rest of a name: `mean`, `max` and `min`, a phase, a process or a verdict.
"Good" is a rule of thumb for the presets here; a run's report names what is wrong by itself.
"Same" in the column verl: verl logs it under this name, too.
"""
_CLI: Final = """\
# Command line

<!-- written by `python -m tests.support.reference_pages` from flows/cli/commands.py -->

Exit codes: 0 fine, 1 the run failed or was stopped, 2 bad input or settings.
"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its file name."""
    return {
        "settings.md": settings_page(),
        "verl-settings.md": verl_page(),
        "metrics.md": metrics_page(),
        "cli.md": cli_page(),
        "algorithms.md": algorithms_page(),
        "json.md": json_page(),
    }


def metrics_page() -> str:
    """Returns a table for each first part of the metrics' names."""
    lines = [_METRICS]
    for part, metrics in groupby(METRICS, key=lambda metric: metric.name.partition("/")[0]):
        lines += [
            f"## {part}\n",
            "| metric | unit | meaning | good | verl |",
            "|---|---|---|---|---|",
        ]
        for metric in metrics:
            means = metric.means + (f" Needs {metric.when}." if metric.when else "")
            verl = {"the same": "same", None: "-"}.get(metric.verl, metric.verl)
            lines.append(f"| `{metric.name}` | {metric.unit} | {means} | {metric.good} | {verl} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def cli_page() -> str:
    """Returns the help of the program and of each command, in the order of its groups."""
    with mock.patch.dict(os.environ, COLUMNS="100"):
        parser = build_parser()
        (choices,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
        helps = {name: command.format_help() for name, command in choices.items()}
        lines = [_CLI, *_fenced(parser.format_help())]
    assert set(helps) == set(COMMANDS)
    for title, names in GROUPS.items():
        lines.append(f"## {title.capitalize()}\n")
        for name in names:
            lines += [f"### {PROGRAM} {name}\n", *_fenced(helps[name])]
    return "\n".join(lines).rstrip() + "\n"


def _fenced(text: str) -> Iterator[str]:
    yield f"```text\n{text.rstrip()}\n```\n"


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
    return "\n".join(_wrapped(f"- `{file.stem}`: {escaped(comment)}"))


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
    meaning = escaped(setting.meaning).splitlines()
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
        yield "\n".join(_wrapped(f"- {escaped(reason)}: {keys}"))


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
    """Writes all pages."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
