"""Evaluation of any one model as a flow, alone or against another, from a form."""

from __future__ import annotations

from typing import Any

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()  # a Prefect worker starts this module without our command line
hide_cuda_only_packages()

from prefect import flow  # noqa: E402  # transformers and vLLM come with the tasks below

from flows.evaluate_checkpoint import choose  # noqa: E402
from flows.runs.state import heeding_the_server  # noqa: E402
from tasks.evaluate import evaluate_models_task  # noqa: E402
from tasks.generate import cached_dataset  # noqa: E402
from tasks.prefect_ui.flow_run import logs_in_ui  # noqa: E402


@flow(name="evaluate")
def evaluate(
    checkpoint: str = "latest", against: str | None = None, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Asks a model the test problems, and compares it with another that is asked the same.

    Args:
        checkpoint: champion; RUN, RUN/best, RUN/step_000100 or RUN/base, each without RUN/ of the
            latest run; a model's folder; or a Hugging Face name.
        against: Likewise, or nothing.
        overrides: KEY=VALUE each; storage.root says where the runs are. A run's model is asked the
            problems of its run under the run's settings, which the others change.

    Returns:
        `models`, of each its name, number of problems, and accuracy with its 95% interval;
        `comparison`, where there are two, and `files`, where the rows lie.
    """
    asked = {"checkpoint": checkpoint} | ({"against": against} if against else {})
    with logs_in_ui(), heeding_the_server():
        chosen = choose(asked, overrides)
        with chosen.published():
            data = chosen.data or cached_dataset(chosen.config)
            return evaluate_models_task(chosen.config, data, *chosen.models)
