"""What the Prefect UI shows of a flow run itself: its log, and tags to find it by."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from httpx import HTTPError
from prefect import get_client
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.logging.handlers import APILogHandler

from rl_core.config.run import RunConfig
from rl_core.errors import first_line
from rl_core.system.log_file import (
    OUR_LOGGERS,
    PREFECTS_RUN_LOGGERS,
    RedactingFormatter,
    listening,
)
from rl_core.system.redaction import redacting_errors
from tasks.prefect_ui.artifacts import beside

_logger = logging.getLogger(__name__)


class _RunLog(APILogHandler):
    """Sends records to the log of the flow or task run that they come from, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if TaskRunContext.get() is not None or FlowRunContext.get() is not None:
            super().emit(record)


@contextmanager
def logs_in_ui() -> Iterator[None]:
    """Has the UI show what our loggers say within the block, from INFO up: all of a flow's body.

    Credentials are blotted out of that, of what Prefect's own run loggers say, and of errors.
    """
    message_alone = RedactingFormatter("%(message)s")
    handler = _RunLog(logging.INFO)
    handler.setFormatter(message_alone)
    prefects = [
        (other, other.formatter)
        for name in PREFECTS_RUN_LOGGERS
        for other in logging.getLogger(name).handlers
        if isinstance(other, APILogHandler)
    ]
    for other, _ in prefects:
        other.setFormatter(message_alone)
    try:
        with listening(handler, OUR_LOGGERS), redacting_errors():
            yield
    finally:
        for other, formatter in prefects:
            other.setFormatter(formatter)


def tag_flow_run(config: RunConfig) -> None:
    """Adds preset, env and estimator to the tags of this flow run, beside whatever goes on."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    tags = {
        *context.flow_run.tags,
        f"preset:{config.preset}",
        f"env:{config.env.name}",
        f"estimator:{config.algorithm.estimator}",
    }

    def send() -> None:
        try:
            with get_client(sync_client=True) as client:
                client.update_flow_run(flow_run_id, tags=tags)
        except (HTTPError, PrefectException) as error:
            _logger.warning("the Prefect server did not take the tags: %s", first_line(error))

    flow_run_id = context.flow_run.id
    beside(send)
