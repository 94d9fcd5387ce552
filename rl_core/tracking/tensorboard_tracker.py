"""TensorBoard: an event file per start, `tensorboard --logdir RUNS` shows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.config.run import RunConfig

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

_logger = logging.getLogger(__name__)


class TensorBoardTracker:
    """Writes each step's metrics, under the same names, if `trainer.logger` names it.

    A start first makes TensorBoard drop the steps that will be done again: after a resume, older
    files may hold them. The trainer's thread writes and flushes at each step. If that fails (a full
    disk), a warning is logged and the rest of this file is missing; the run continues.
    """

    def __init__(self, config: RunConfig, run_folder: Path, start_step: int) -> None:
        self._is_wanted = "tensorboard" in config.trainer.logger
        self._folder = run_folder / "tensorboard"
        self._start_step = start_step
        self._writer: EventsWriter | None = None

    def __enter__(self) -> TensorBoardTracker:
        if self._is_wanted:
            with self._or_a_warning():
                self._writer = self._open()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._writer is not None:
            with self._or_a_warning():
                self._writer.close()

    def on_step(self, step: int, last_step: int, metrics: Mapping[str, float]) -> None:
        """Writes one step's metrics; never raises."""
        if self._writer is None:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        with self._or_a_warning():
            self._writer.write_event(
                Event(wall_time=time.time(), step=step, summary=Summary(value=values))
            )
            self._writer.flush()

    def _open(self) -> EventsWriter:
        """Returns a new file that begins where training does; step 0 is the test before it."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder.mkdir(exist_ok=True)
        attempt = len(list(self._folder.iterdir()))
        writer = EventsWriter(str(self._folder / "events"), f".{attempt}")
        writer.write_event(
            Event(
                wall_time=time.time(),
                step=self._start_step + 1 if self._start_step > 0 else 0,
                session_log=SessionLog(status=SessionLog.START),
            )
        )
        writer.flush()
        return writer

    @contextmanager
    def _or_a_warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  nothing here may end a run
            self._writer = None
            _logger.warning(
                "TensorBoard lacks the rest of this run (%s); metrics.jsonl has all of it", error
            )
