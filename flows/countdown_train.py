"""The pipeline: one flow, each stage once, in the order in which they run.

    preflight -> generate -> validate -> base model -> train -> prune -> evaluate -> report

Not here: what a stage does (`tasks/`), and how the command line shows it (`flows/cli.py`).
"""

from __future__ import annotations

from typing import Any

from rl_core.process_env import hide_cuda_only_packages

hide_cuda_only_packages()

from prefect import Task, flow  # noqa: E402  # transformers and vLLM come with the tasks below
from prefect.client.schemas.objects import State, TaskRun  # noqa: E402
from prefect.context import FlowRunContext  # noqa: E402

from flows.compose import PresetName, compose  # noqa: E402
from flows.run_record import choose_run, recorded  # noqa: E402
from rl_core.config import RunConfig  # noqa: E402
from rl_core.errors import OutOfMemory, WorkerDied  # noqa: E402
from rl_core.tracking import RunFolder, utc_now  # noqa: E402
from tasks.base_model import cached_base_model  # noqa: E402
from tasks.evaluate import evaluate_task  # noqa: E402
from tasks.generate import cached_dataset  # noqa: E402
from tasks.preflight import preflight_task  # noqa: E402
from tasks.prune import prune_task  # noqa: E402
from tasks.report import report_task  # noqa: E402
from tasks.train import train_task  # noqa: E402
from tasks.validate import validate_task  # noqa: E402


@flow(name="countdown-train")
def countdown_train(
    preset: PresetName = "quickstart", overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Trains a model on verifiable puzzles, from an empty folder to a report.

    Args:
        preset: Named settings to start from.
        overrides: KEY=VALUE each, as on the command line.

    Returns:
        The run's record, as in `run.json`.
    """
    config = compose([f"preset={preset}", *overrides])
    preflight_task(config)
    config = choose_run(config, _own_name())
    run = RunFolder.create(config)
    with recorded(run) as stage:
        with stage("generate"):
            data = cached_dataset(config)
        with stage("base_model"):
            model_path = cached_base_model(config, data)
        with stage("validate"):
            validate_task(config, data, model_path)
        run.update(model=str(model_path), data=str(data))
        with stage("train"):
            # Called, not submitted: a submitted task hears no Ctrl-C and no cancellation.
            steps = _retried_train(config, run)(config, run, data, model_path)
            run.update(steps=steps)
        with stage("prune"):
            prune_task(config, run)
        with stage("evaluate"):
            evaluate_task(config, run, data, model_path)
        run.update(status="finished", finished_at=utc_now())  # or its report would say "running"
        with stage("report"):
            report_task(run)
    return run.read().model_dump(mode="json")


def is_worth_retrying(error: object) -> bool:
    """Says whether another attempt may do better: memory or a process was lost, nothing wrong."""
    return isinstance(error, OutOfMemory | WorkerDied)


def _retried_train(config: RunConfig, run: RunFolder) -> Task[..., int]:
    """Returns the train task with its retries; each goes on from the latest checkpoint."""

    def lost_memory_or_a_process(task: Task[..., Any], task_run: TaskRun, state: State) -> bool:
        if is_worth_retrying(state.data):
            run.add_attempt(str(state.data))
        return is_worth_retrying(state.data)

    return train_task.with_options(
        retries=config.retry.max_retries,
        retry_delay_seconds=config.retry.delay_s,
        retry_condition_fn=lost_memory_or_a_process,
    )


def _own_name() -> str | None:
    """Returns a name that all attempts of this flow run share: when it was made, and its name."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.created is None:
        return None
    return f"{context.flow_run.created:%Y%m%d-%H%M%S}-{context.flow_run.name}"
