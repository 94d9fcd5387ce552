"""Train: the loop in a watched process, its progress and its attempts in Prefect's UI."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import psutil
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import Log
from tasks.prefect_ui import attempts
from tasks.prefect_ui.flow_run import once_per_flow_run, stage
from tasks.prefect_ui.progress import TrainingProgress
from tasks.preflight_checks.hours import plan_steps
from tasks.supervision.supervisor import Watched, call_supervised, keeps_engines
from tasks.supervision.trainer_process import Start, train_for_parent

_command = [psutil.Process().create_time()]
"""When this process began, until its first attempt has taken it."""


def train_supervised(
    config: RunConfig,
    run: RunFolder,
    *,
    data: Path,
    model_path: Path,
    on_step: Callable[[int, int, dict[str, float]], None],
    logger: Log,
) -> int:
    """Trains by `Training`, in a watched process, and returns the last step done.

    If it is asked to stop, it finishes the current update and saves. In a task run its engines then
    also answer the problems of the evaluation. Errors are as in `call_supervised`.
    """
    last_done = 0

    def tell(step: int, last_step: int, metrics: dict[str, float]) -> None:
        nonlocal last_done
        last_done = step
        on_step(step, last_step, metrics)

    process = replace(
        Watched.of_run("trainer", config, run), logs_to_wandb="wandb" in config.trainer.logger
    )
    start = Start(
        evaluates=TaskRunContext.get() is not None,
        keeps=keeps_engines(),
        before=seconds_before(run),
        called_at=time.time(),
    )
    work = {"config": config, "run": run, "data": data, "model_path": model_path, "start": start}
    steps = call_supervised(process, train_for_parent, work, logger, tell)
    return last_done if steps is None else steps


def seconds_before(run: RunFolder) -> dict[str, float]:
    """Returns what an attempt has taken until its training is called, by phase.

    The first of a process begins with the command, and makes data and base model; a retry begins
    when the attempt before has ended, and is delayed by `retry.delay_s`.
    """
    record = run.read()
    began_at = datetime.fromisoformat(record.attempts[-1].started_at).timestamp()
    if not _command:
        return {"delay": time.time() - began_at}
    made_s = sum(record.timings_s.values()) if len(record.attempts) == 1 else 0.0
    return {"command": time.time() - _command.pop() - made_s, "data and model": made_s}


@stage("train", attempts.attempt_name, once_per_flow_run)
def train_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> int:
    """Trains inside a flow run, with a progress artifact; the flow decides about retries."""
    logger = get_run_logger()
    attempts.show_attempts(run, logger)
    with attempts.telling_of_the_end(config, run):
        return train_and_show(config, run, data, model_path, logger)


def train_and_show(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path, logger: Log
) -> int:
    """Trains with the settings in force and shows each step; in a task run, also in the UI."""
    in_force = attempts.settings_in_force(config, run)
    planned = plan_steps(config, run)
    in_ui = None if TaskRunContext.get() is None else run
    with TrainingProgress(
        logger, in_force, planned=planned, earlier=run.metrics.read(), artifacts_of=in_ui
    ) as progress:
        return train_supervised(
            in_force,
            run,
            data=data,
            model_path=model_path,
            on_step=progress.on_step,
            logger=logger,
        )
