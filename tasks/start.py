"""Start: a night's seed and model, which is the champion of its problems or the settings' own."""

import logging
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

from prefect.logging import get_run_logger
from pydantic import BaseModel, ConfigDict

from rl_core.checkpoints.champion import Champion, champion_file, read_champion
from rl_core.checkpoints.manifest import MANIFEST
from rl_core.config.run import RunConfig
from rl_core.evaluator import Evaluator
from rl_core.resources.memory_plan import ModelShape
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.storage.champions import bring_champion
from rl_core.storage.object_store import ObjectStore
from tasks.base_model import made_folder
from tasks.generate import generate_dataset
from tasks.made_folders import is_complete
from tasks.prefect_ui.flow_run import once_per_flow_run, stage
from tasks.preflight_checks.plans import model_shape
from tasks.storage import bring_inputs, bring_records

StartFrom = Literal["champion", "afresh"]


class Start(BaseModel):
    """Where a night starts."""

    model_config = ConfigDict(frozen=True)
    folder: Path | None  # the champion's checkpoint; None for the model of the settings
    why: str  # one sentence, which begins with `the champion RUN/step_000100` if there is one
    is_as_asked: bool = True  # false if there is a champion that cannot be used
    seed: int = 0

    @property
    def sentence(self) -> str:
        """What the night starts from, and why."""
        return self.why if self.folder is not None else f"afresh: {self.why}"


def champion_of(config: RunConfig, data: Path) -> Champion | None:
    """Returns the champion of a data set's test problems, if there is one."""
    return read_champion(
        champion_file(config.storage.root, config.env.name, Evaluator(config, data).problem_set)
    )


def champion_to_train(config: RunConfig) -> Start:
    """Returns a start from these problems' champion: others may be trained on these tests."""
    env = config.env.name
    if config.storage.url is not None:
        bring_inputs(config, ObjectStore(config.storage.url))
        bring_champion(config.storage, env, Evaluator(config, generate_dataset(config)).problem_set)
    known = config.storage.root / "champions"
    if not any(known.glob(f"{env}-*.json")):
        return Start(folder=None, why=f"no champion of {env} in {known} yet")
    unusable = partial(Start, folder=None, is_as_asked=False)
    try:
        champion = champion_of(config, generate_dataset(config))
    except ValueError as error:  # the file that names it is damaged
        return unusable(why=str(error))
    if champion is None:
        return unusable(why=f"no champion of these test problems in {known}, only of others")
    name = f"the champion {champion.current.name}"
    folder = config.storage.root / champion.current.checkpoint
    if (why := _why_unusable(config, champion, folder)) is not None:
        return unusable(why=f"{name} {why}")
    path = config.model.path
    instead = "" if path is None else f", instead of model.path={path}"
    return Start(folder=folder, why=f"{name}, accuracy {champion.current.accuracy:.3f}{instead}")


def _why_unusable(config: RunConfig, champion: Champion, folder: Path) -> str | None:
    if not (folder / MANIFEST).is_file():
        return f"is gone from the disk ({folder})"
    try:
        if not champion.is_there(config.storage.root):
            return f"is no longer the checkpoint that was promoted: its files changed ({folder})"
        shape = ModelShape.from_folder(folder)
    except (OSError, ValueError) as error:
        return f"cannot be read ({error})"
    made = made_folder(config)
    if made is not None and is_complete(made):
        needed: ModelShape | None = ModelShape.from_folder(made)
    elif (needed := model_shape(config)) is not None and config.model.path is None:
        # The home-made model is not here: its tokenizer may have fewer tokens than set.
        needed = replace(needed, vocab_size=min(needed.vocab_size, shape.vocab_size))
    if needed is None or needed == shape:
        return None
    other = ", ".join(
        f"{field.name} {getattr(shape, field.name)} instead of {getattr(needed, field.name)}"
        for field in fields(ModelShape)
        if getattr(shape, field.name) != getattr(needed, field.name)
    )
    return f"is not of the size that the settings ask for: {other}"


def next_seed(config: RunConfig) -> int:
    """Returns the seed of the next night: one more than the highest of the nights that are over.

    With the same seed, a night from the same champion would repeat the night before. An interrupted
    night is not over: the next one may continue it, which needs the same settings.
    """
    seeds = [config.seed]
    for run in RunFolder.all_under(config.storage.root):
        with suppress(ValueError):  # the folder is no run
            record = run.read()
            seed = read_settings(run.path).get("seed")
            is_over = record.night is not None and record.status in ("finished", "failed")
            if is_over and isinstance(seed, int):
                seeds.append(seed + 1)
    return max(seeds)


@stage("start", "choose the model to start from", once_per_flow_run)
def start_task(config: RunConfig, start_from: StartFrom) -> Start:
    """Returns model and seed of a flow run: its retries start from the same."""
    bring_records(config.storage)
    afresh = Start(folder=None, why="start_from=afresh")
    start = champion_to_train(config) if start_from == "champion" else afresh
    start = start.model_copy(update={"seed": next_seed(config)})
    level = logging.INFO if start.is_as_asked else logging.WARNING
    begins = "from " if start.folder else ""
    get_run_logger().log(level, "starting %s%s, seed=%d", begins, start.sentence, start.seed)
    return start
