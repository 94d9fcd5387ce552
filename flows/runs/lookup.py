"""Reads what a command is about: an existing run, and its settings."""

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from flows.errors import BadInputError
from flows.settings.compose import compose
from flows.settings.keys import check_choice
from rl_core.config.mistakes import explain
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.data.readers import is_fetched
from rl_core.envs import DEFAULT_ENV
from rl_core.runs.lock import close_if_lost
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings, refuse_older
from rl_core.system.words import cut, in_one_line
from tasks.queries.checkpoint_names import NamedModel, find_model
from tasks.queries.run_tables import find_runs

_LONGEST_MISTAKE: Final = 300
"""Characters: the value may be a stranger's."""


def where_and_others(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the settings that say where a run is, and those that change how it is treated."""
    where = [t for t in words if t.startswith(("run_id=", "storage.root=", "storage.url="))]
    return where, [text for text in words if text not in where]


def run_first(words: Sequence[str], command: str) -> list[str]:
    """Returns a command's words as settings: a RUN without a key is its run_id."""
    settings = [word for word in words if "=" in word and word != "run_id=latest"]
    named = [word for word in words if "=" not in word]
    if len(named) + sum(text.startswith("run_id=") for text in words) > 1:
        raise BadInputError(f"{command} takes one RUN, by default the latest")
    return [*(f"run_id={name}" for name in named if name != "latest"), *settings]


def existing_run(overrides: Sequence[str]) -> tuple[RunConfig, RunFolder]:
    """Returns the run named by run_id, else the latest, and its settings under the overrides."""
    where, _ = where_and_others(overrides)
    run = find_run(where)
    return changed_settings(run, overrides, compose(where).storage), run


def changed_settings(run: RunFolder, words: Sequence[str], storage: StorageConfig) -> RunConfig:
    """Returns a run's settings under a command's words; `storage` as for `settings_of_run`."""
    base = settings_of_run(run, storage, words)
    changes = [word for word in where_and_others(words)[1] if word != f"env={base.env.name}"]
    return compose(changes, base=base)


def refuse_unnamed(config: RunConfig, words: Sequence[str], *, ray: bool = False) -> None:
    """Refuses what a run's folder chooses: a reward function, what Ray loads, a hub's data sets.

    What the command's `words` name is allowed, and what is in the hub's cache. `ray`: the command
    joins `resources.ray_address`, where the cluster's code runs.
    """
    env = config.env
    named = {word.partition("=")[0].strip() for word in words}
    chosen = _fetched(config)
    if env.reward not in ((), type(env).model_fields["reward"].default):
        names = ",".join(env.reward)
        chosen["env.reward"] = f"[{names}]" if "," in names else names
        if config.reward.env:
            chosen["reward.env"] = f"[{','.join(config.reward.env)}]"
    if ray and config.resources.ray_address is not None:
        chosen["resources.ray_address"] = config.resources.ray_address
    if unnamed := " ".join(f"{key}={value}" for key, value in chosen.items() if key not in named):
        raise BadInputError(
            f"the run's folder chooses code to run or data to fetch: add {unnamed} to the "
            "command if you trust it"
        )


def _fetched(config: RunConfig) -> dict[str, str]:
    """Returns the settings that name a hub's data set that is not cached, besides an env's own."""
    source = config.env.rows.source(config.env)
    lists = {"train": config.data.train_files, "test": config.data.test_files}
    names = {"sft.data": config.sft.data}
    if source != config.env.rows.source(type(config.env)()):
        names["env.source"] = source
    return {
        f"data.{split}_files": f"[{','.join(files)}]"
        for split, files in lists.items()
        if any(is_fetched(file, split) for file in files)
    } | {key: name for key, name in names.items() if name is not None and is_fetched(name, "train")}


def find_run(overrides: Sequence[str]) -> RunFolder:
    """Returns the run named by run_id, else the latest, below `storage.root`; closed if lost."""
    where = compose(overrides)
    if where.storage.url is not None:
        from tasks.storage import bring_records, bring_runs  # with Prefect

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


def named_model(
    name: str, words: Sequence[str], env: str | None = None
) -> tuple[NamedModel, StorageConfig]:
    """Returns the model that a name means (`find_model`), and the storage that the words name."""
    from tasks.storage import bring_model  # with Prefect

    where = compose(where_and_others(words)[0])
    storage = where.storage
    bring_model(storage, name, where.run_id)
    try:
        return find_model(name, storage.root, run_id=where.run_id or "latest", env=env), storage
    except ValueError as error:
        raise BadInputError(str(error)) from None


def settings_of_run(
    run: RunFolder, storage: StorageConfig | None = None, words: Sequence[str] = ()
) -> RunConfig:
    """Returns the settings that a run was started with, for the root that holds it.

    `storage`: the command's root and store, in place of the run's. An `env=package.module:ENV` of
    the run is imported only if it is in the command's `words`.
    """
    if not (settings := read_settings(run.path)):
        raise BadInputError(
            f"{run.path / 'config.yaml'} is missing or damaged: it holds no settings"
        )
    try:
        refuse_older(run.path)
        if ":" in (env := settings["env"]["name"]) and f"env={env}" in words:
            check_choice("env", env)
        settings["run_id"] = run.run_id
        where = storage or StorageConfig(root=run.root)
        settings["storage"] |= {"root": where.root, "url": where.url}
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        mistake = cut(explain(error.errors()[0], DEFAULT_ENV), _LONGEST_MISTAKE)
        raise BadInputError(f"{run.path / 'config.yaml'}: {mistake}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BadInputError(in_one_line(error)) from None
