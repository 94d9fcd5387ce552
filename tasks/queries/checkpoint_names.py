"""Finds the model that a user names: a run's checkpoint, the champion, a folder, a hub model."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rl_core.checkpoints.champion import all_champions
from rl_core.checkpoints.store import best, latest, list_checkpoints
from rl_core.runs.run_folder import RunFolder
from rl_core.system.model_folder import CONFIG
from rl_core.system.words import as_path, did_you_mean, printable
from tasks.queries.run_tables import find_runs

_OF_A_RUN = re.compile(r"base|best|latest|step_\d{6,}")


@dataclass(frozen=True)
class NamedModel:
    """A model to evaluate."""

    name: str  # as a table shows it: `RUN/step_000100`, `RUN/base`, or the name it was given
    folder: Path
    run: RunFolder | None
    step: int

    @property
    def model(self) -> str:
        """`step_000100` or `base` of a run, else the name."""
        return self.name if self.run is None else self.name.rpartition("/")[2]


def find_model(
    name: str, root: Path, *, run_id: str = "latest", env: str | None = None
) -> NamedModel:
    """Returns the model of this name; ValueError if there is none.

    A name is `champion` (of `env`, by default the one promoted last); `RUN` (its latest
    checkpoint), `RUN/base`, `RUN/best`, `RUN/latest` or `RUN/step_000100`, of the run `run_id` if
    `RUN/` is left out; a model's folder; or any other value of `model.path`.
    """
    if name == "champion":
        return _champion(root, env)
    if _OF_A_RUN.fullmatch(name):
        return _of_run(RunFolder(find_runs(root, run_id)[0]), name)
    run_name, _, what = name.partition("/")
    run = RunFolder.under(root, run_name)
    if run_name and run.is_there():
        return _of_run(run, what or "latest")
    if (folder := as_path(name)).is_dir():
        run = RunFolder(folder.resolve().parent.parent)
        if run.is_there():
            return _of_run(run, folder.resolve().name)
    elif run_name and (not what or _OF_A_RUN.fullmatch(what)):
        runs: list[Path] = []
        with suppress(ValueError):  # it may be a hub's name
            runs = find_runs(root, run_name)
        if runs:
            return _of_run(RunFolder(runs[0]), what or "latest")
    return NamedModel(name, _resolve(name, root), None, 0)


def _champion(root: Path, env: str | None) -> NamedModel:
    champions = [c for c in all_champions(root) if env in (None, c.env)]
    if not champions:
        of_env = f" of env={env}" if env else ""
        raise ValueError(
            f"no champion{of_env} in {root / 'champions'} yet: a run that learns makes one"
        )
    reign = champions[-1].current
    if not champions[-1].is_there(root):
        raise ValueError(f"the champion {reign.name} is gone from {root / reign.checkpoint}")
    return _of_run(RunFolder.under(root, reign.run_id), Path(reign.checkpoint).name)


def base_of_run(run: RunFolder) -> Path:
    """Returns the folder of a run's base model; no hub is asked for a name in the run's folder."""
    model = run.read().model
    if model is None:
        raise ValueError(f"run {run.run_id} did not get as far as a base model")
    if not Path(model).is_dir():
        raise ValueError(f"the base model of {run.run_id} is not in {printable(model)} any more")
    return Path(model)


def _of_run(run: RunFolder, what: str) -> NamedModel:
    if what == "base":
        return NamedModel(f"{run.run_id}/base", base_of_run(run), run, 0)
    links = {"best": best, "latest": latest}
    named = {checkpoint.path.name: checkpoint for checkpoint in list_checkpoints(run.path)}
    checkpoint = links[what](run.path) if what in links else named.get(what)
    if checkpoint is None:
        there = ", ".join(named) or "none"
        raise ValueError(f"{run.run_id} has no checkpoint {what!r} (there are: {there})")
    return NamedModel(f"{run.run_id}/{checkpoint.path.name}", checkpoint.path, run, checkpoint.step)


def _resolve(name: str, root: Path) -> Path:
    from rl_core.data.prompts import resolve_model

    if (as_path(name) / CONFIG).is_file():  # a checkpoint of an adapter is one as it is, too
        return as_path(name).resolve()
    try:
        return resolve_model(name, root)
    except ValueError as error:
        hint = did_you_mean(name.partition("/")[0], (path.name for path in find_runs(root)))
        raise ValueError(str(error).replace("model.path=", "checkpoint=") + hint) from None
