"""The commands `countdown-train explain KEY[=VALUE]` and `config [--explain]`."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from flows.errors import BadInputError

_EXPLAIN: Final = "say what a setting means, its bounds, who sets it, its name in verl"
_CONFIG: Final = "print the resolved settings (--explain: with what each means)"


def add_parsers(commands: Any) -> None:
    """Adds `explain` and `config` to the command line's commands."""
    parser = commands.add_parser(
        "explain",
        help=_EXPLAIN,
        description=f"{_EXPLAIN}. KEY may be a group (actor) or verl's name; with =VALUE it says "
        "whether that is allowed, beside the settings that follow.",
    )
    parser.add_argument("words", nargs="*", metavar="KEY[=VALUE]")
    parser.set_defaults(command=explain)
    parser = commands.add_parser("config", help=_CONFIG, description=_CONFIG)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--explain", action="store_true", help="say what each setting means")
    parser.set_defaults(command=print_config)


def explain(options: argparse.Namespace) -> None:
    """Explains one setting, or a group of them.

    Raises:
        BadInputError: no key is given.
        SettingsError: there is no such setting, or its value is not allowed.
    """
    if not options.words:
        raise BadInputError("explain takes a KEY, as actor.lr, or KEY=VALUE (config lists all)")
    key, equals, value = options.words[0].partition("=")
    from flows.settings.compose import compose
    from flows.settings.explain import all_settings, find_settings, in_words, ours_of
    from tasks.importers.verl_idle import meaning

    ours = ours_of(key)
    is_ours = any(f"{setting.key}.".startswith(f"{ours}.") for setting in all_settings())
    if not is_ours and (reason := meaning(key, "")) is not None:
        _print(f"{key}: verl's, without a meaning here: {reason[0]}")
        return

    found = []
    if key in ("preset", "env"):
        _choice(key)
    else:
        found = find_settings(key)
        if ours != key:
            _print(f"verl's {key} is called {ours} here")
        _print("\n\n".join(map(in_words, found)))
    if equals:
        others = options.words[1:]
        envs = {setting.env for setting in found}
        if len(envs) == 1 and not any(word.startswith(("env=", "preset=")) for word in others):
            others = [*(f"env={env}" for env in envs if env), *others]
        config = compose([f"{ours}={value}", *others])
        beside = [f"preset={config.preset}", *(w for w in others if not w.startswith("preset="))]
        _print(f"\n{ours}={value} is allowed with {' '.join(beside)}")


def print_config(options: argparse.Namespace) -> None:
    """Prints the resolved settings as YAML."""
    from flows.settings.compose import compose, to_yaml

    config = compose(options.words)
    if not options.explain:
        sys.stdout.write(to_yaml(config))
        return
    from flows.settings.explain import yaml_with_words

    sys.stdout.write(yaml_with_words(config))


def _choice(group: str) -> None:
    from flows.settings.keys import CHOICES, CONF

    if group == "preset":
        _print(
            "preset\n  A file of settings to start from; preset=FILE.yaml takes one of your own."
        )
        for file in sorted((CONF / "preset").glob("*.yaml")):
            text = file.read_text(encoding="utf-8").splitlines()[1]
            _print(f"  {file.stem:20} {text.removeprefix('# ')}")
        return
    _print("env\n  The family of problems; env=NAME takes its defaults for all of env.*")
    _print(f"  allowed   {' or '.join(CHOICES['env'])}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
