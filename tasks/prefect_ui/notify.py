"""Notify: the task of a flow run that sends a message."""

from collections.abc import Mapping
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from rl_core.system.redaction import redacting_errors
from tasks.messages import Listeners, notify


@task(name="notify", task_run_name="notify webhook and command")
@redacting_errors()
def notify_task(listeners: Listeners, message: Mapping[str, Any]) -> None:
    """Notifies in a flow run."""
    notify(listeners, message, get_run_logger())
