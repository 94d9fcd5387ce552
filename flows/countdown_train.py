"""The pipeline: one flow, each stage once, in the order in which they run.

    preflight -> generate -> validate -> base model -> train -> prune -> evaluate -> promote
    -> report

Not here: what a stage does (`tasks/`), and how the command line shows it (`flows/cli/main.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from flows.prefect_patches.own_settings import ignore_working_folder
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()  # a Prefect worker starts this module without our command line
ignore_working_folder()
hide_cuda_only_packages()

from prefect import Task, flow, task  # transformers and vLLM come with the tasks below
from prefect.client.schemas.objects import State, TaskRun

from flows.errors import one_line
from flows.prefect_patches.own_server import obey_own_server_only
from flows.runs.run_record import choose_run, prepare_for_flow_runs, recorded
from flows.runs.state import heeding_the_server, own_flow_run, take_over
from flows.settings.compose import PresetName, changed_to, compose, own_settings
from rl_core.config.run import RunConfig
from rl_core.config.unread import unread_settings
from rl_core.errors import OutOfMemory, Stalled, WorkerDied
from rl_core.runs.lock import started
from rl_core.runs.metrics_log import utc_now
from rl_core.runs.run_folder import RunFolder
from tasks.base_model import cached_base_model, keep_curve
from tasks.evaluate import evaluate_task
from tasks.generate import dataset_task
from tasks.prefect_ui.attempts import attempt_name, changes_for_retry, settings_in_force
from tasks.prefect_ui.flow_run import is_trained, logs_in_ui, tag_flow_run
from tasks.preflight import preflight_task
from tasks.promote import promote_task
from tasks.prune import prune_task
from tasks.report import report_run
from tasks.storage import bring_records, published
from tasks.supervision.supervisor import between_attempts
from tasks.train import train_task
from tasks.validate import validate_task

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

obey_own_server_only()
prepare_for_flow_runs()


@task(name="report", task_run_name="write report.html")
def report_task(run: RunFolder) -> Path:
    """Writes the report that ends a run, see `tasks/report.py`."""
    return report_run(run)


@flow(name="countdown-train")
def countdown_train(
    preset: PresetName = "quickstart", overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Trains a model on verifiable puzzles, from an empty folder to a report.

    Args:
        preset: Named settings to start from. quickstart and gsm8k-toy run on a laptop's CPU within
            minutes, overnight-cpu within a night; countdown-* and tinyzero-* (Countdown) and
            gsm8k-* need a GPU and a model.
        overrides: What differs from the preset, KEY=VALUE each as on the command line, such as
            trainer.total_steps=50, seed=1, algorithm.estimator=grpo or storage.root=/data/outputs
            (`countdown-train config` prints all settings). run_id=NAME continues a run; a
            preset=NAME or preset=FILE.yaml stands before `preset`.

    Returns:
        The run's record, as in `run.json`.
    """
    with logs_in_ui():
        run = run_pipeline(settings_of(preset, overrides))
    return run.read().model_dump(mode="json")


def settings_of(preset: str, overrides: Sequence[str]) -> RunConfig:
    """Returns the settings that a form asks for; a preset among the overrides takes precedence."""
    is_named = any(text.startswith("preset=") for text in overrides)
    return compose(overrides if is_named else [f"preset={preset}", *overrides])


def run_pipeline(config: RunConfig, **record: str | None) -> RunFolder:
    """Runs every stage inside a flow run; `record`: fields of `run.json` that are known before."""
    tag_flow_run(config)
    # Tasks are called, not submitted: a submitted task does not see Ctrl-C or a cancellation.
    call = Chain()
    unread = unread_settings(config, changed_to(config))
    call(preflight_task, config, unread)
    bring_records(config.storage)
    config = choose_run(config, own_name())
    with published(config), started(config) as run, heeding_the_server(), recorded(run) as stage:
        run.update(own_settings=own_settings(config), unread=unread, **record)
        take_over(run)
        with stage("generate"):
            data = call(dataset_task(config), config)
        with stage("base_model"):
            model_path = cached_base_model(config, data)
            keep_curve(model_path, run.path)
        with stage("validate"):
            call(validate_task, config, data, model_path)
        run.update(model=str(model_path), data=str(data))
        with stage("train"), between_attempts():
            run.update(steps=call(retried_train(config, run), config, run, data, model_path))
        with stage("prune"):
            call(prune_task, config, run)
        with stage("evaluate"):  # an engine that was too large for training still is
            in_force = settings_in_force(config, run)
            call(retried_evaluate(config, run), in_force, run, data, model_path)
        with stage("promote"):
            call(promote_task, config, run, data, model_path)
        run.update(status="finished", finished_at=utc_now())  # or its report says "running"
        with stage("report"):
            call(report_task, run)
    return run


class Chain:
    """Calls tasks as a plain call does; each depends on the one before it.

    Prefect draws an edge only where the result of one task is an argument of another. Our stages
    leave files and hand on no more than a path or a number.
    """

    _before: tuple[State[Any], ...] = ()

    def __call__(self, task: Task[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """Returns the task's result."""
        state = task(*args, **kwargs, wait_for=self._before, return_state=True)
        self._before = (state,)
        return state.result()


def retried_train(config: RunConfig, run: RunFolder) -> Task[..., int]:
    """Returns the train task with its retries; each continues from the latest checkpoint."""

    def lost_memory_or_a_process(task: Task[..., Any], task_run: TaskRun, state: State) -> bool:
        error = state.data
        if not isinstance(error, OutOfMemory | WorkerDied | Stalled):
            return False
        changes = changes_for_retry(config, run, error)
        if changes is None:  # no recovery step is left
            return False
        run.add_attempt(str(error), changes)
        # Prefect names a task run once; its next state carries the new name to the server.
        task_run.name = attempt_name({"run": run})
        return True

    return train_task.with_options(
        retries=config.retry.max_retries,
        retry_delay_seconds=config.retry.delay_s,
        retry_condition_fn=lost_memory_or_a_process,
        refresh_cache=not is_trained(run),
    )


def retried_evaluate(config: RunConfig, run: RunFolder) -> Task[..., None]:
    """Returns the evaluate task with its retries; rows that an attempt kept are not asked again."""

    def lost_a_process(task: Task[..., Any], task_run: TaskRun, state: State) -> bool:
        error = state.data
        if not isinstance(error, WorkerDied | Stalled):
            return False
        what = f"{error.worker} died" if isinstance(error, WorkerDied) else one_line(error)
        run.note(f"evaluation was repeated: {what}")
        return True

    return evaluate_task.with_options(
        retries=config.retry.max_retries,
        retry_delay_seconds=config.retry.delay_s,
        retry_condition_fn=lost_a_process,
    )


def own_name() -> str | None:
    """Returns a name that only this flow run's attempts share: when it was due, and its own."""
    flow_run = own_flow_run()
    if flow_run is None or flow_run.created is None:
        return None
    # A schedule makes flow runs days before they are due (UTC).
    due = flow_run.expected_start_time or flow_run.created
    return f"{due:%Y%m%d-%H%M%S}-{flow_run.name}"
