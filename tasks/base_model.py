"""Base model: the folder that training starts from: named, named and fine-tuned, or home-made."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

from prefect.context import TaskRunContext

from rl_core.checkpoints.manifest import model_digest
from rl_core.config.operations import BudgetConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import generator_settings, read_solved
from rl_core.data.gguf_source import local_folder
from rl_core.data.readers import SPLITS
from rl_core.errors import Stalled, WorkerDied
from rl_core.resources.cost import time_left
from rl_core.sft.named_data import CURVE_NAME, check_sft, data_digest
from rl_core.system.atomic import locked, sweep_leftovers, write_bytes_atomically
from tasks.made_folders import folder_of, home_made_folder, is_complete
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.flow_run import once_per_flow_run, stage
from tasks.supervision.supervisor import Watched, call_supervised

_SFT_RECIPE_VERSION: Final = 3  # the same for fine-tuned models
_LOG_INTERVAL_S: Final = 10.0

_logger = logging.getLogger(__name__)


def base_model(config: RunConfig, data: Path) -> Path:
    """Returns the folder of the base model; makes or fetches it if it is not there yet."""
    folder = made_folder(config)
    if folder is None:
        from rl_core.data.prompts import resolve_model

        assert config.model.path is not None, "a model that is not made has a name"
        return resolve_model(config.model.path, config.storage.root)
    is_home_made = config.model.path is None
    if not is_complete(folder):
        with locked(folder.parent):  # else two runs would make it in the same folder at once
            if not is_complete(folder):
                sweep_leftovers(folder.parent)
                (_warm_start if is_home_made else _tune)(config, data, folder)
    home_made = "home-made base model is weak (raise base_model.steps)"
    for gate in _read_report(folder)["failed_gates"]:
        _logger.warning("the %s: %s", home_made if is_home_made else "SFT went badly", gate)
    return folder


def made_folder(config: RunConfig) -> Path | None:
    """Returns the folder of the model that these settings make, if any; it may not exist yet."""
    if config.model.path is None:
        return home_made_folder(config)
    if config.sft.data is None:
        return None
    # A hub's model is identified by its name, a local folder by its contents.
    local = local_folder(config.model.path, config.storage.root)
    name = local.resolve().name
    # A checkpoint's name (step_000100) says little: its run's name comes first.
    owner = f"{local.resolve().parents[1].name}-" if name.startswith("step_") else ""
    return folder_of(
        config,
        f"sft-{owner}{name}",
        {
            "sft": config.sft.model_dump(mode="json", exclude={"data", "save_freq"}),
            "data": data_digest(config) or generator_settings(config.env, config.data),
            "max_response_length": config.data.max_response_length,
            "template": config.env.prompt_template,
            "model": model_digest(local) if local.is_dir() else config.model.path,
            "lora": (config.model.lora_rank, config.model.lora_alpha),
            "dtype": config.compute_dtype,
            "recipe": _SFT_RECIPE_VERSION,
        },
    )


def _cache_key(context: TaskRunContext, inputs: dict[str, Any]) -> str:
    config = inputs["config"]
    folder = made_folder(config)
    if folder is None:  # not made but named: each flow run looks it up again
        return once_per_flow_run(context, {"model": config.model.path})
    return f"base-model-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}"


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    if config.sft.data is not None:
        return f"fine-tune {Path(str(config.model.path)).name} on {Path(config.sft.data).name}"
    if config.model.path is not None:
        return f"look up the base model {Path(config.model.path).name}"
    return f"warm-start a base model: {config.base_model.steps:,} steps"


@stage("base-model", _run_name, _cache_key)
def base_model_task(config: RunConfig, data: Path) -> Path:
    """Makes or finds the base model in a flow run; a table artifact shows its report."""
    folder = base_model(config, data)
    if made_folder(config) is not None:
        create_table_artifact(
            [{"measure": name, "value": x} for name, x in _read_report(folder).items()],
            key="base-model",
            description=f"The model that was made, measured on held-out examples ({folder}).",
        )
    return folder


def cached_base_model(config: RunConfig, data: Path) -> Path:
    """Runs the task; if an SFT's process dies or stalls, a retry continues from its last save."""
    if (folder := made_folder(config)) is not None:
        is_there = is_complete(folder)
    else:
        is_there = local_folder(str(config.model.path), config.storage.root).is_dir()
    return base_model_task.with_options(
        refresh_cache=not is_there,
        retries=0 if config.sft.data is None else config.retry.max_retries,
        retry_delay_seconds=config.retry.delay_s,
        retry_condition_fn=lambda task, run, state: isinstance(state.data, WorkerDied | Stalled),
    )(config, data)


def keep_curve(model: Path, run: Path) -> None:
    """Copies the loss curve of a fine-tuned model into a run's folder; other models have none."""
    if (model / CURVE_NAME).is_file():
        write_bytes_atomically(run / CURVE_NAME, (model / CURVE_NAME).read_bytes())


def _tune(config: RunConfig, data: Path, folder: Path) -> None:
    from rl_core.data.prompts import resolve_model
    from tasks.supervision.trainer_process import tune_for_parent

    check_sft(config)
    log_step = _log_steps("SFT", config.budget)
    model_path = resolve_model(str(config.model.path), config.storage.root)
    call_supervised(
        Watched("sft", folder.parent / "logs", config.watchdog.stall_s),
        tune_for_parent,
        {"config": config, "model_path": model_path, "data": data, "folder": folder},
        _logger,
        lambda step, last_step, row: log_step(step, last_step, row["loss"]),
    )
    if not is_complete(folder):
        raise InterruptedError(f"SFT was stopped; it continues from its last save ({folder.name})")


def _warm_start(config: RunConfig, data: Path, folder: Path) -> None:
    from transformers.utils.logging import disable_progress_bar

    from rl_core.sft.train import make_base_model

    env = config.env
    if env.sft is None:
        raise ValueError(f"model.path must name a model: env={env.name} has no home-made one")
    train, test = (
        [
            (problem.messages[0]["content"], env.sft.lesson(problem, solution))
            for problem, solution in read_solved(data / f"{split}.parquet")
        ]
        for split in SPLITS
    )
    examples = env.sft.examples(config.base_model.give_up_prob, train, test)
    disable_progress_bar()  # it would show only the saving of one small file
    _logger.info(
        "warm-starting the home-made base model: %d steps; it is saved at its end only, so if it "
        "is stopped before (Cancel, Ctrl-C), it starts again from step 0",
        config.base_model.steps,
    )
    log_step = _log_steps("warm start", config.budget)
    measured = make_base_model(config.base_model, examples, folder=folder, on_step=log_step)
    shown = "; ".join(f"{name.replace('_', ' ')} {x:.3g}" for name, x in measured.items())
    size = f"{_read_report(folder)['num_parameters']:,}"
    _logger.info("base model of %s parameters: %s", size, shown)


def _log_steps(what: str, budget: BudgetConfig) -> Callable[[int, int, float], None]:
    logged_at = time.monotonic()
    done_at: list[float] = []

    def on_step(step: int, last_step: int, loss: float) -> None:
        nonlocal logged_at
        done_at.append(now := time.monotonic())
        if now - logged_at >= _LOG_INTERVAL_S:
            logged_at = now
            seconds = [after - before for before, after in pairwise(done_at)]
            left = time_left(seconds, last_step - step, None, budget)
            _logger.info(
                "%s %d/%d · loss %.3f%s", what, step, last_step, loss, f" · {left}" if left else ""
            )

    return on_step


def _read_report(folder: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((folder / "warm_start.json").read_text()))
