"""Base model: the folder that training starts from, named by `model.path` or home-made and cached.

Not the training itself: `rl_core/sft/train.py` makes the home-made model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefect import task
from prefect.context import TaskRunContext

from rl_core.config.run import RunConfig
from rl_core.data.dataset import generator_settings, read_solved
from rl_core.envs import env_of
from rl_core.system.atomic import locked, sweep_leftovers
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.result_keys import once_per_flow_run

if TYPE_CHECKING:
    from rl_core.envs.sft_examples import SftExamples
    from rl_core.sft.train import WarmStartReport

RECIPE_VERSION: Final = 3
"""Part of the cache key: raise it when the same settings would make another model."""
_LOG_INTERVAL_S: Final = 10.0

OnStep = Callable[[int, int, float], None]
_logger = logging.getLogger(__name__)


def base_model(config: RunConfig, data: Path) -> Path:
    """Returns the folder of the base model; makes or fetches it where it is not there yet.

    Args:
        config: `model.path` names a local folder or a model of a hub; without it the home-made
            model is used, made from the train split on the first call.
        data: folder of the data set.
    """
    if config.model.path is not None:
        from rl_core.data.prompts import resolve_model

        return resolve_model(config.model.path)
    folder = home_made_folder(config)
    if not is_complete(folder):
        with locked(folder.parent):  # two runs would make it twice, one under the other's feet
            if not is_complete(folder):
                sweep_leftovers(folder.parent)
                _warm_start(config, data, folder)
    for gate in _read_report(folder)["failed_gates"]:
        _logger.warning("the home-made base model is weak (raise base_model.steps): %s", gate)
    return folder


def home_made_folder(config: RunConfig) -> Path:
    """Returns where the home-made model of these settings lies, there or not."""
    settings = {
        "base_model": config.base_model.model_dump(mode="json", exclude={"num_threads"}),
        "data": generator_settings(config.env, config.data),
        "recipe": RECIPE_VERSION,
    } | ({"answered": True} if config.env.max_turns > 1 else {})
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return config.storage.root / "models" / f"{config.env.slug}-{digest[:12]}"


def is_complete(folder: Path) -> bool:
    """Says whether a home-made model lies there; it appears whole, so one file tells."""
    return (folder / "warm_start.json").is_file()


def _cache_key(context: TaskRunContext, inputs: dict[str, Any]) -> str:
    config = inputs["config"]
    if config.model.path is not None:  # another run looks again
        return once_per_flow_run(context, {"model": config.model.path})
    folder = home_made_folder(config).resolve()
    return f"base-model-{hashlib.sha256(str(folder).encode()).hexdigest()}"


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    if config.model.path is not None:
        return f"look up the base model {Path(config.model.path).name}"
    return f"warm-start a base model: {config.base_model.steps:,} steps"


@task(
    name="base-model",
    task_run_name=_run_name,  # type: ignore[arg-type]  # a plain function does
    persist_result=True,
    result_serializer="json",
    cache_key_fn=_cache_key,
)
def base_model_task(config: RunConfig, data: Path) -> Path:
    """Makes or finds the base model in a flow run, with its gates as a table artifact."""
    folder = base_model(config, data)
    if config.model.path is None:
        create_table_artifact(
            [
                {"measure": name, "value": str(value)}
                for name, value in _read_report(folder).items()
            ],
            key="base-model",
            description=f"What the warm start made, measured on held-out problems ({folder}).",
        )
    return folder


def cached_base_model(config: RunConfig, data: Path) -> Path:
    """Runs the task: cached where the settings are unchanged and the folder is still there."""
    if config.model.path is not None:
        is_there = Path(config.model.path).expanduser().is_dir()
    else:
        is_there = is_complete(home_made_folder(config))
    return base_model_task.with_options(refresh_cache=not is_there)(config, data)


def _warm_start(config: RunConfig, data: Path, folder: Path) -> WarmStartReport:
    from transformers.utils.logging import disable_progress_bar

    from rl_core.sft.train import make_base_model

    disable_progress_bar()  # of saving one small file
    _logger.info("warm-starting the home-made base model: %d steps", config.base_model.steps)
    report = make_base_model(
        config.base_model, _examples(config, data), folder=folder, on_step=_log_steps()
    )
    shown = {name: value for name, value in report.as_json().items() if name != "failed_gates"}
    _logger.info("base model: %s", shown)
    return report


def _examples(config: RunConfig, data: Path) -> SftExamples:
    home_made = env_of(config.env).home_made
    if home_made is None:
        raise ValueError(f"model.path must name a model: env={config.env.name} has none home-made")
    train, test = (read_solved(data / f"{split}.parquet") for split in ("train", "test"))
    return home_made.examples(
        config.env, give_up_prob=config.base_model.give_up_prob, train=train, test=test
    )


def _log_steps() -> OnStep:
    """Returns a callback that logs a line every `_LOG_INTERVAL_S`."""
    logged_at = time.monotonic()

    def on_step(step: int, last_step: int, loss: float) -> None:
        nonlocal logged_at
        if time.monotonic() - logged_at >= _LOG_INTERVAL_S:
            logged_at = time.monotonic()
            _logger.info("warm start %d/%d · loss %.3f", step, last_step, loss)

    return on_step


def _read_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "warm_start.json").read_text())
    return report
