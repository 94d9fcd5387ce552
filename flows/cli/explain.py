"""The commands `countdown-train explain KEY[=VALUE]` and `config [--explain]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.settings.compose import SettingsError, compose, to_yaml
from flows.settings.explain import (
    Setting,
    all_settings,
    containing,
    find_settings,
    in_words,
    ours_of,
    yaml_with_words,
)
from flows.settings.keys import CHOICES, CONF, of_another_env
from rl_core.config.run import RunConfig
from rl_core.runs.settings_file import leaves
from rl_core.system.words import LINES, printable
from tasks.importers.verl_table import meaning


def explain(words: Sequence[str]) -> None:
    """Explains one setting, or a group of them.

    Raises:
        BadInputError: no key is given.
        SettingsError: there is no such setting, or its value is not allowed.
    """
    if not words:
        raise BadInputError("explain takes a KEY, as actor.lr, or KEY=VALUE (config lists all)")
    key, equals, value = words[0].partition("=")
    ours = ours_of(key)
    is_ours = any(f"{setting.key}.".startswith(f"{ours}.") for setting in all_settings())
    if not is_ours and (reason := meaning(key, "")) is not None:
        say(f"{key}: verl's, without a meaning here: {reason[0]}")
        return

    others = words[1:]
    found = []
    if key in ("preset", "env"):
        _choice(key)
    elif not equals and (named := containing(key)):
        for setting in named:
            say(f"{setting.key:32} {setting.meaning.partition('. ')[0].splitlines()[0]}")
        return
    else:
        found = find_settings(key)
        if not equals and others:
            _in_force(found, compose(others))
            return
        if ours != key:
            say(f"verl's {key} is called {ours} here")
        say("\n\n".join(map(in_words, found)))
    if equals:
        envs = {setting.env for setting in found}
        if len(envs) == 1 and not any(word.startswith(("env=", "preset=")) for word in others):
            others = [*(f"env={env}" for env in envs if env), *others]
        config = compose([f"{ours}={value}", *others])
        beside = [f"preset={config.preset}", *(w for w in others if not w.startswith("preset="))]
        say(f"\n{ours}={value} is allowed with {' '.join(beside)}")


def _in_force(found: Sequence[Setting], config: RunConfig) -> None:
    """Explains settings under others: those of their env, and the values in force."""
    values = dict(leaves(config.model_dump(mode="json")))
    own = [setting for setting in found if setting.env in (None, config.env.name)]
    if not own:
        raise SettingsError(of_another_env(found[0].key, config.env.name))
    for setting in own:
        value = json.dumps(values[setting.key])
        say(f"{in_words(setting)}\n  {'here':9} {value} with preset={config.preset}")


def print_config(words: Sequence[str], *, explained: bool) -> None:
    """Prints the resolved settings as YAML."""
    config = compose(words)
    text = yaml_with_words(config) if explained else to_yaml(config)
    sys.stdout.write(printable(text, keep=LINES) if sys.stdout.isatty() else text)


def _choice(group: str) -> None:
    if group == "preset":
        say("preset\n  A file of settings to start from; preset=FILE.yaml takes one of your own.")
        for file in sorted((CONF / "preset").glob("*.yaml")):
            text = file.read_text(encoding="utf-8").splitlines()[1]
            say(f"  {file.stem:20} {text.removeprefix('# ')}")
        return
    say("env\n  The family of problems; env=NAME takes its defaults for all of env.*")
    say(f"  allowed   {' or '.join(CHOICES['env'])}")
