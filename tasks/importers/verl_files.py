"""What a launch script names on its own machine: problems, model, reward function -> ours.

Data that is not on this machine is made or fetched anew, in the prompt that the model is used to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from rl_core.config.run import DataConfig
from rl_core.data.readers import find_files, is_hub_name, read_records
from rl_core.envs import DEFAULT_ENV, ENVS
from rl_core.envs.record import LaunchScripts
from rl_core.envs.user_rows import Record
from tasks.importers.verl_values import Given, Settings, at
from tasks.preflight_checks.finding import Finding

_SPLITS: Final = {"data.train_files": "data.train_files", "data.val_files": "data.test_files"}
_FIELDS: Final = ("data_source", "prompt", "reward_model")


def problem_findings(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """Chooses the env, its data files and its prompt, and says what is not here."""
    files = {ours: _here(settings.pop(ours, None)) for ours in _SPLITS.values()}
    here, missing = files["data.train_files"]
    row = _first_row(here)
    env = _env_of(row) if row else _env_by_name(given)
    settings["env.name"] = env or DEFAULT_ENV
    for theirs, ours in _SPLITS.items():
        yield from _missing(given.get(theirs), files[ours][1], None if here else env)
    if here:
        settings["data.train_files"] = here
        if tests := files["data.test_files"][0]:
            settings["data.test_files"] = tests
    elif missing and env is None:
        yield at(
            given["data.train_files"].line,
            "what problems these are cannot be told",
            "the preset makes Countdown puzzles; env=gsm8k, or data.train_files=FILE, changes that",
        )
    source = row.get("data_source")
    if here and env is None and source is not None:
        settings["env.name"] = _env_of_truth(_truth(row))
    if here and env is None and source is not None and not any(_reward_files(given)):
        yield at(
            given["data.train_files"].line,
            f"{here[0]} holds data_source={source}, which no env here is made for",
            f"the preset scores it as {settings['env.name']} does; env.reward=module:function "
            "takes a rule of your own",
        )
    if (scripts := ENVS[settings["env.name"]].launch_scripts) is not None:
        settings |= scripts.settings(row, str(settings.get("model.path", "")).lower())


def num_problems(given: Mapping[str, Given], settings: Settings) -> int | None:
    """Returns how many problems there are to train on; None where only reading them would tell."""
    most: int | None = settings.get("data.train_size")
    if files := settings.get("data.train_files"):
        paths = [Path(name).expanduser() for name in files]
        if not all(path.suffix == ".parquet" and path.is_file() for path in paths):
            return None
        try:
            rows: int = sum(pq.read_metadata(path).num_rows for path in paths)
        except (OSError, ValueError):
            return None  # said of the file when it is read
        return min(rows, most or rows)
    if "data.train_files" in given and _env_by_name(given) is None:
        return None
    if (source := ENVS[settings["env.name"]].source) is not None:
        return source.num_problems
    return most or int(DataConfig.model_fields["train_size"].default)


def model_findings(given: Mapping[str, Given], settings: Settings, line: int) -> Iterator[Finding]:
    """Takes a model from the hub where the folder that was downloaded is not on this machine."""
    path = settings.get("model.path")
    if path is None:
        said = "actor_rollout_ref.model.path is not said"
        yield at(line, said, "the preset trains a home-made model; model.path=NAME takes another")
    if not isinstance(path, str) or is_hub_name(path) or Path(path).expanduser().exists():
        return
    name = Path(path).name
    line = given["actor_rollout_ref.model.path"].line
    if name.startswith("Qwen") and is_hub_name(f"Qwen/{name}"):
        settings["model.path"] = f"Qwen/{name}"
        remedy = f"the preset takes Qwen/{name} from the hub; model.path=FOLDER names a copy"
        yield at(line, f"{path} is not here", remedy, is_grave=False)
    else:
        yield at(line, f"{path} is not here", "model.path=FOLDER, or OWNER/NAME of the hub")


def reward_findings(given: Mapping[str, Given], settings: Settings) -> Iterator[Finding]:
    """A file and a function's name become module:function."""
    for prefix, path in _reward_files(given):
        file = Path(path.plain)
        name = given.get(f"{prefix}.name", Given("compute_score", 0)).value
        if not (file.stem.isidentifier() and name.isidentifier()):
            yield at(path.line, f"{file} cannot be imported by its name", "rename it to NAME.py")
            continue
        settings["env.reward"] = f"{file.stem}:{name}"
        yield at(
            path.line,
            f"{file} is the module {file.stem} here",
            f"PYTHONPATH={file.parent} must be set where the run starts",
            is_grave=False,
        )


def _reward_files(given: Mapping[str, Given]) -> Iterator[tuple[str, Given]]:
    """Yields the section and the file of each reward function that a script names."""
    for prefix in ("custom_reward_function", "reward.custom_reward_function"):
        path = given.get(f"{prefix}.path")
        if path is not None and isinstance(path.plain, str) and "$" not in path.value:
            yield prefix, path


def _here(asked: Any) -> tuple[list[str], list[str]]:
    """Returns the names that are here, or on the hub, and those that are not."""
    names = [str(name) for name in (asked if isinstance(asked, list) else [asked] if asked else [])]
    here = [name for name in names if _is_here(name)]
    return here, [name for name in names if name not in here]


def _is_here(name: str) -> bool:
    try:
        find_files("", [name], "train", from_hub=False)
    except ValueError:
        return False
    return True


def _missing(one: Given | None, missing: Sequence[str], env: str | None) -> Iterator[Finding]:
    """Says what becomes of files that are not here: the env's are made, where nothing else is."""
    named = [name for name in missing if _env_in(name) is not None]
    made = {name: scripts.made for name, scripts in _launch_scripts()}
    ours = [name for name in named or missing if env is not None and _env_in(name) in (env, None)]
    for names, remedy in (
        (ours, made.get(env or "", "")),
        ([name for name in missing if name not in ours], "left out"),
    ):
        if one is not None and names:
            said = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not here"
            yield at(one.line, said, remedy, is_grave=False)


def _env_by_name(given: Mapping[str, Given]) -> str | None:
    """Returns what the names of files say, else those of the project, else of the experiment."""
    for key in ("data.train_files", "trainer.project_name", "trainer.experiment_name"):
        if key in given and (env := _env_in(given[key].value)):
            return env
    return None


def _launch_scripts() -> list[tuple[str, LaunchScripts]]:
    """Returns what each env is told by, the default one last: its peer's name is in any path."""
    named = [(name, env.launch_scripts) for name, env in ENVS.items() if env.launch_scripts]
    return sorted(named, key=lambda item: item[0] == DEFAULT_ENV)


def _env_in(name: str) -> str | None:
    return next(
        (env for env, its in _launch_scripts() if any(word in name.lower() for word in its.words)),
        None,
    )


def _first_row(files: Sequence[str]) -> Record:
    """Returns the first row of files that are here; nothing where they cannot be read."""
    paths = [Path(name).expanduser() for name in files]
    fields = (*_FIELDS, *(column for env in ENVS.values() for column in env.own_columns))
    try:
        records = read_records(next(path for path in paths if path.is_file()), fields)
        return next(records)[1]
    except (StopIteration, OSError, ValueError):
        return {}


def _truth(row: Record) -> Any:
    reward_model = row.get("reward_model")
    return reward_model.get("ground_truth") if isinstance(reward_model, dict) else None


def _env_of(row: Record) -> str | None:
    """Returns what a row says it is, else what its columns are."""
    source = row.get("data_source")
    if isinstance(source, str):
        return _env_in(source)
    return next((env for env, its in _launch_scripts() if its.has_columns(row)), None)


def _env_of_truth(truth: Any) -> str:
    return next((env for env, its in _launch_scripts() if its.has_truth(truth)), DEFAULT_ENV)
