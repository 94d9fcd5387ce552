"""Files that a launch script names, here or elsewhere: problems, model, reward function."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rl_core.config.run import DataConfig
from rl_core.data.readers import count_rows, find_files, is_hub_name, read_records
from rl_core.envs import DEFAULT_ENV, ENVS
from rl_core.envs.rows import Record
from rl_core.envs.text_env import TextEnv
from rl_core.system.words import as_path
from tasks.importers.verl_table import ScriptSettings

_TRAIN: Final = "data.train_files"
_MODEL: Final = "actor_rollout_ref.model.path"
_REWARDS: Final = ("custom_reward_function.path", "reward.custom_reward_function.path")


def add_files(script: ScriptSettings) -> None:
    """Chooses model, env, data files, prompt and reward function, and says what is not here."""
    _add_model(script)
    settings = script.settings
    rewards = [key for key in _REWARDS if isinstance(script.plain(key), str)]
    here, missing = _here(settings.pop(_TRAIN, ()))
    tests, missing_tests = _here(settings.pop("data.test_files", ()))
    row: Record = {}
    with suppress(IndexError, StopIteration, ValueError):  # none is here, or it cannot be read
        columns = (column for its in ENVS.values() for column in its.rows.columns)
        names = ("data_source", "prompt", "reward_model", *columns)
        row = next(read_records(_files(here)[0], names))[1]
    source = row.get("data_source")
    if not row:
        env = _env_by_name(script)
    elif isinstance(source, str):
        env = _env_in(source)
    else:
        env = _env_whose(lambda its: any(row.get(column) for column in its.rows.columns[:1]))
    other_column = script.plain("data.prompt_key") not in (None, "prompt")
    settings["env.name"] = env or ("custom" if other_column else DEFAULT_ENV)
    _say_missing(script, _TRAIN, missing, None if here else env)
    _say_missing(script, "data.val_files", missing_tests, None if here else env)
    if here:
        settings |= {_TRAIN: here} | ({"data.test_files": tests} if tests else {})
    elif missing and env is None:
        script.say("unknown_problems", _TRAIN)
    if here and env is None and source is not None:
        reward: Any = row.get("reward_model")
        truth = reward.get("ground_truth") if isinstance(reward, dict) else None
        settings["env.name"] = (
            _env_whose(lambda its: its.import_from.has_truth(truth)) or DEFAULT_ENV
        )
        if not rewards:
            script.say(
                "problems_of_no_env",
                _TRAIN,
                file=here[0],
                source=source,
                env=settings["env.name"],
            )
    its = ENVS[settings["env.name"]].import_from
    settings |= its.settings(row, settings.get("model.path", "").lower())
    for key in rewards:
        _add_reward(script, key)


def num_problems(script: ScriptSettings) -> int | None:
    """Returns how many problems there are to train on; None if that is not known yet."""
    most: int | None = script.settings.get("data.train_size")
    if files := script.settings.get(_TRAIN):
        with suppress(ValueError):  # said of the file when it is read
            if not any(map(is_hub_name, files)):
                rows = sum(map(count_rows, _files(files)))
                return min(rows, most or rows)
        return None
    if _TRAIN in script.given and _env_by_name(script) is None:
        return None
    on_hub = ENVS[script.settings["env.name"]].rows.source_size
    default = most or int(DataConfig.model_fields["train_size"].default)
    return default if on_hub is None else on_hub


def _add_model(script: ScriptSettings) -> None:
    """Takes a model from the hub if the folder that was downloaded is not on this machine."""
    path = script.settings.get("model.path")
    if path is None:
        if script.plain(_MODEL) is None and _MODEL not in script.unread:
            script.say("no_model_is_read" if script.may_be_set(_MODEL) else "no_model")
        return
    with suppress(OSError):  # too long a name
        if is_hub_name(path) or as_path(path).exists():
            return
    hub_name = f"Qwen/{Path(path).name}"
    if hub_name.startswith("Qwen/Qwen") and is_hub_name(hub_name):
        script.settings["model.path"] = hub_name
        script.say("model_of_the_hub", _MODEL, path=path, name=hub_name)
    else:
        script.say("model_is_not_here", _MODEL, path=path)


def _add_reward(script: ScriptSettings, key: str) -> None:
    file = Path(script.plain(key))
    function = str(script.plain(key.replace("path", "name")) or "compute_score")
    if file.stem.isidentifier() and function.isidentifier():
        script.settings["env.reward"] = f"{file.stem}:{function}"
        script.say("reward_module", key, file=file, module=file.stem, folder=file.parent)
    else:
        script.say("reward_without_a_module", key, file=file)


def _files(names: Sequence[str]) -> list[Path]:
    return find_files("", names, "train", from_hub=False)


def _here(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the names that are here, or on the hub, and those that are not."""
    here = []
    for name in names:
        with suppress(ValueError):
            _files([name])
            here.append(name)
    return here, [name for name in names if name not in here]


def _say_missing(script: ScriptSettings, key: str, missing: Sequence[str], env: str | None) -> None:
    """Says of files that are not here that the run makes them, or that they are left out."""
    named = [name for name in missing if _env_in(name) is not None]
    made = [n for n in named or missing if env is not None and _env_in(n) in (env, None)]
    for names, remedy in (
        (made, ENVS[env].import_from.remedy if env is not None else ""),
        ([name for name in missing if name not in made], "left out"),
    ):
        if names:
            say = "file_is_not_here" if len(names) == 1 else "files_are_not_here"
            script.say(say, key, names=", ".join(names), remedy=remedy)


def _env_by_name(script: ScriptSettings) -> str | None:
    """Returns the env that the names of files, of the project or of the experiment fit."""
    names = map(script.plain, (_TRAIN, "trainer.project_name", "trainer.experiment_name"))
    return next(filter(None, map(_env_in, map(str, names))), None)


def _env_in(name: str) -> str | None:
    return _env_whose(lambda its: any(word in name.lower() for word in its.import_from.words))


def _env_whose(fits: Callable[[type[TextEnv]], bool]) -> str | None:
    """Returns the first env that fits, the default one last: any path may hold `tinyzero`."""
    names = sorted(ENVS, key=lambda name: name == DEFAULT_ENV)
    return next((name for name in names if fits(ENVS[name])), None)
