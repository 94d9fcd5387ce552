"""Reads what a command is about: an existing run's settings, and arguments that are no settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flows.errors import BadInputError
from rl_core.system.words import in_one_line

if TYPE_CHECKING:
    from rl_core.config.run import RunConfig
    from rl_core.runs.run_folder import RunFolder

WHERE: Final = ("run_id=", "storage.root=", "storage.url=")
"""How the settings begin that say where a run is; all others change how it is treated."""
_PLAIN_ROOT: Final = re.compile(r"storage\.root=(?=.*/)([\w./-]+)")
"""A path that Hydra reads as it stands."""


def storage_root(overrides: Sequence[str]) -> Path:
    """Returns where runs and data sets are.

    Without Hydra if that is possible: to import it takes longer than to answer most questions.
    """
    if not overrides:
        from rl_core.config.operations import StorageConfig

        return StorageConfig().root
    plain = _PLAIN_ROOT.fullmatch(overrides[0])
    if plain is not None and len(overrides) == 1:
        return Path(plain[1])
    from flows.settings.compose import compose

    storage = compose(overrides).storage
    if storage.url is not None:
        from tasks.storage import bring_runs

        bring_runs(storage)
    return storage.root


def where_and_others(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the settings that say where a run is, and those that change how it is treated."""
    where = [text for text in words if text.startswith(WHERE)]
    return where, [text for text in words if text not in where]


def take_arguments(
    overrides: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Returns the command's own arguments by name, and the settings that remain."""
    taken: dict[str, str] = {}
    settings = []
    for text in overrides:
        name, _, value = text.partition("=")
        if name not in names:
            settings.append(text)
        elif name in taken:
            raise BadInputError(f"{name} is given twice: {text!r} too")
        elif not value.strip():
            raise BadInputError(f"{text!r} is not KEY=VALUE")
        else:
            taken[name] = value.strip()
    return taken, settings


def run_first(words: Sequence[str], command: str) -> list[str]:
    """Returns a command's words as settings: a RUN without a key is its run_id."""
    settings = [word for word in words if "=" in word and word != "run_id=latest"]
    named = [word for word in words if "=" not in word]
    if len(named) + sum(text.startswith("run_id=") for text in words) > 1:
        raise BadInputError(f"{command} takes one RUN, by default the latest")
    return [*(f"run_id={name}" for name in named if name != "latest"), *settings]


def existing_run(
    overrides: Sequence[str], *, arguments: Sequence[str] = ()
) -> tuple[RunConfig, RunFolder]:
    """Returns the run named by run_id, else the latest, and its settings under the overrides.

    `arguments`: as for `compose`.
    """
    from flows.settings.compose import compose

    where, others = where_and_others(overrides)
    run = find_run(where)
    base = settings_of_run(run, url=compose(where).storage.url, words=overrides)
    others = [text for text in others if text != f"env={base.env.name}"]
    return compose(others, base=base, arguments=arguments), run


def refuse_unnamed_code(config: RunConfig, words: Sequence[str], *, ray: bool = False) -> None:
    """Refuses code that a run's folder chooses: a reward function, and what Ray would load.

    Args:
        config: settings of an existing run under the command's.
        words: of the command; what these name is allowed.
        ray: whether the command joins `resources.ray_address`, where the cluster's code runs.
    """
    env, named = config.env, {word.partition("=")[0].strip() for word in words}
    chosen = {}
    if env.reward not in (None, type(env).model_fields["reward"].default):
        chosen["env.reward"] = env.reward
        if env.reward_env:
            chosen["env.reward_env"] = f"[{','.join(env.reward_env)}]"
    if ray and config.resources.ray_address is not None:
        chosen["resources.ray_address"] = config.resources.ray_address
    if unnamed := " ".join(f"{key}={value}" for key, value in chosen.items() if key not in named):
        raise BadInputError(
            f"the run's folder chooses code that this command would run: add {unnamed} to the "
            "command if you trust it"
        )


def find_run(overrides: Sequence[str]) -> RunFolder:
    """Returns the run named by run_id, else the latest, below `storage.root`; closed if lost."""
    from flows.settings.compose import compose
    from rl_core.runs.lock import close_if_lost
    from rl_core.runs.run_folder import RunFolder
    from tasks.queries.run_tables import find_runs

    where = compose(overrides)
    if where.storage.url is not None:
        from tasks.storage import bring_records, bring_runs

        bring_records(where.storage)
    try:
        (folder,) = find_runs(where.storage.root, where.run_id or "latest")
    except (OSError, ValueError) as error:
        raise BadInputError(in_one_line(error)) from None
    if where.storage.url is not None:
        bring_runs(where.storage, chosen=lambda run_id: run_id == folder.name)
    run = RunFolder(folder)
    close_if_lost(run)
    return run


def settings_of_run(
    run: RunFolder,
    root: Path | None = None,
    *,
    url: str | None = None,
    words: Sequence[str] = (),
) -> RunConfig:
    """Returns the settings that a run was started with, for its storage root or another.

    Args:
        run: the run.
        root: by default the one that it lies in.
        url: of the store that this root mirrors.
        words: of the command: a run's `env=package.module:ENV` is imported only if it is in them.
    """
    from flows.settings.keys import check_choice
    from rl_core.config.run import RunConfig
    from rl_core.runs.settings_file import read_settings

    if not (settings := read_settings(run.path)):
        raise BadInputError(
            f"{run.path / 'config.yaml'} is missing or damaged: it holds no settings"
        )
    try:
        if ":" in (env := settings["env"]["name"]) and f"env={env}" in words:
            check_choice("env", env)
        settings["run_id"] = run.run_id
        settings["storage"] |= {"root": root or run.root, "url": url}
        return RunConfig.model_validate(settings)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInputError(in_one_line(error)) from None
