"""wandb beside the trainer, never in its way: the only file that imports it.

Metrics are on the local disk before they come here. A thread of its own starts wandb and hands it
what a bounded queue holds; the trainer only ever puts into that queue, without waiting. Whatever
wandb does (hang, raise, find no server) costs a warning line. `wandb sync` uploads an offline run's
folder later.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rl_core.config import RunConfig
from rl_core.log_file import redact

QUEUE_STEPS = 1_000
"""Steps that may wait for wandb; further ones are dropped (the local files have them)."""
START_TIMEOUT_S = 10.0
"""An online start that takes longer is given up for an offline one."""
FINISH_TIMEOUT_S = 10.0
"""What is not uploaded this long after the end stays in the run's folder."""
_logger = logging.getLogger(__name__)


class WandbTracker:
    """Sends each step's metrics to wandb if `trainer.logger` names it; a context manager.

    Example:
        with WandbTracker(config, run.path) as tracker:
            tracker.on_step(1, 100, {"critic/score/mean": 0.1})
    """

    def __init__(self, config: RunConfig, run_path: Path) -> None:
        """Prepares; nothing starts before the block is entered.

        Args:
            config: shown in wandb; `trainer.wandb_mode` decides about the network.
            run_path: `runs/<run_id>`; wandb's files go to `wandb/` in it, its run id is ours.
        """
        self._config = config
        self._run_path = run_path
        self._steps: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(QUEUE_STEPS)
        self._thread: threading.Thread | None = None
        self._warned = False

    def __enter__(self) -> WandbTracker:
        if "wandb" in self._config.trainer.logger:
            self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        try:
            self._steps.put_nowait(None)
        except queue.Full:
            self._warn("it is still busy with earlier steps")
            return
        self._thread.join(FINISH_TIMEOUT_S)
        if self._thread.is_alive():
            self._warn(f"it did not finish within {FINISH_TIMEOUT_S:.0f} s")

    def on_step(self, step: int, last_step: int, metrics: Mapping[str, float]) -> None:
        """Hands over one step's metrics; returns at once and never raises."""
        if self._thread is None or not self._thread.is_alive():
            return
        try:
            self._steps.put_nowait((step, dict(metrics)))
        except queue.Full:
            self._warn(f"{QUEUE_STEPS} steps are waiting for it already")

    def _work(self) -> None:
        """The thread: starts wandb, hands on steps until the end, finishes."""
        try:
            run = self._start()
            while (item := self._steps.get()) is not None:
                step, metrics = item
                run.log(metrics, step=step)
            run.finish()
        except Exception as error:  # noqa: BLE001  wandb may raise anything; a run outlives it
            self._warn(str(error))

    def _start(self) -> Any:
        """Returns a wandb run: in the mode that was asked for, else offline."""
        mode = self._config.trainer.wandb_mode
        if mode == "online":
            try:
                return self._init("online")
            except Exception as error:  # noqa: BLE001  see _work
                first_line = str(error).partition("\n")[0]
                _logger.warning("wandb is offline in this run: %s", redact(first_line))
                self._tear_down()
        return self._init("offline")

    def _tear_down(self) -> None:
        """Ends the service of a failed start: it would refuse the run id as being in use."""
        import wandb

        wandb.teardown()

    def _init(self, mode: Literal["online", "offline"]) -> Any:
        # Imported here: a second of work that only those who asked for wandb pay, in this thread.
        import wandb

        return wandb.init(
            project=self._config.trainer.wandb_project,
            id=self._run_path.name,
            name=self._run_path.name,
            resume="allow",
            dir=str(self._run_path),
            mode=mode,
            config=self._config.model_dump(mode="json"),
            settings=wandb.Settings(
                console="off",  # it would take over stdout and stderr of the whole process
                silent=True,
                disable_git=True,
                x_disable_meta=True,  # host name, command line, user
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=START_TIMEOUT_S,
                finish_timeout=FINISH_TIMEOUT_S,
            ),
        )

    def _warn(self, why: str) -> None:
        """Says once that wandb misses something."""
        if not self._warned:
            self._warned = True
            _logger.warning(
                "wandb lacks steps of this run (%s); metrics.jsonl has them all", redact(why)
            )
