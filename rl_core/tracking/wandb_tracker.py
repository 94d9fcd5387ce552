"""wandb, without slowing the trainer: a separate process sends what is on the disk.

The trainer only starts that process (wandb_process.py) and ends it: no step waits for it, and a
wandb that hangs, crashes or raises harms no training. A run has its folder's name at wandb, so a
continued run continues its curve.
"""

import logging
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rl_core.config.run import RunConfig
from rl_core.runs.metrics_log import MetricsLog
from rl_core.system.atomic import open_own
from rl_core.system.child_process import Child, how_it_ended
from rl_core.system.network import wandb_url, why_silent
from rl_core.system.redaction import redact

FINISH_TIMEOUT_S = 10.0
"""Seconds for the upload after the end; the rest is left to `countdown-train sync`."""
_UPLOAD_TIMEOUT_S = 300.0
"""Longest upload of one run by `countdown-train sync`."""
_MARGIN_S = 2.0
"""Seconds by which the process gives up before it would be killed."""
_logger = logging.getLogger(__name__)


@contextmanager
def wandb_tracking(config: RunConfig, run_folder: Path) -> Iterator[None]:
    """Sends the run's metrics to wandb within the block, if `trainer.logger` names it.

    Unless `trainer.wandb_mode` is `online`, the upload is left to `countdown-train sync`.

    wandb never raises here. Leaving the block takes `FINISH_TIMEOUT_S` at most, and no process
    remains. Steps that wandb then lacks are in `metrics.jsonl`, and `upload_run` sends them.
    """
    child = None
    if "wandb" in config.trainer.logger and config.trainer.wandb_mode == "online":
        try:
            child = _start(run_folder, "online", FINISH_TIMEOUT_S)
        except OSError as error:
            _say_incomplete(run_folder, f"its process could not be started: {error}")
    if child is None:
        yield
        return
    relay = threading.Thread(target=_relay, args=(child, run_folder), name="wandb", daemon=True)
    relay.start()
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        _end(child, FINISH_TIMEOUT_S, exit_code)
        relay.join(1.0)
        child.close()


def _relay(child: Child, run_folder: Path) -> None:
    """Runs in a thread: logs the process's messages, and a warning if it did not send all."""
    for message in _messages(child):
        if "say" in message:
            _logger.warning("wandb: %s", redact(message["say"]))
    if (code := child.process.wait()) != 0:
        _say_incomplete(run_folder, "given up" if code > 0 else how_it_ended(code))


def _messages(child: Child) -> Iterator[dict[str, Any]]:
    """Yields the process's messages until it ends; the last says how many steps were sent."""
    with suppress(OSError, EOFError):
        while True:
            yield child.receive()


def _say_incomplete(run_folder: Path, why: str) -> None:
    _logger.warning(
        "wandb lacks steps of this run (%s): metrics.jsonl has them all, and "
        "`countdown-train sync run_id=%s` uploads them",
        redact(why),
        run_folder.name,
    )


def upload_run(run_folder: Path) -> tuple[str, int, str]:
    """Sends the steps that wandb lacks of a run; returns the result, their number, and a note.

    Result and note: `failed` and why, in one line; `uploaded` or `already`, and the run's name.
    """
    if not MetricsLog(run_folder / "metrics.jsonl").read():
        return "already", 0, "no step was done"
    try:
        child = _start(run_folder, "upload", _UPLOAD_TIMEOUT_S)
    except OSError as error:
        return "failed", 0, str(error)
    _end(child, _UPLOAD_TIMEOUT_S, exit_code=0)
    messages = list(_messages(child))
    child.close()
    if child.process.returncode != 0 or not messages or "sent" not in messages[-1]:
        words = [message["say"] for message in messages if "say" in message]
        return "failed", 0, redact(words[-1]) if words else "it took too long"
    sent = messages[-1]["sent"]
    return "uploaded" if sent else "already", sent, run_folder.name


def _start(run_folder: Path, mode: str, timeout_s: float) -> Child:
    """Starts the process that imports wandb; an OSError says why it cannot."""
    folder = run_folder / "wandb"
    folder.mkdir(exist_ok=True)
    arguments = (run_folder, mode, timeout_s - _MARGIN_S)
    with open_own(folder / f"output-{mode}.txt", "w") as output:
        return Child("rl_core.tracking.wandb_process", *arguments, output=output, needs=["wandb"])


def _end(child: Child, timeout_s: float, exit_code: int) -> None:
    """Lets the process finish, and kills it and what it started if that takes too long."""
    with suppress(OSError):  # it is dead
        child.send({"exit_code": exit_code})
        child.socket.shutdown(socket.SHUT_WR)  # it may be about to become another program
    try:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(timeout_s)
    finally:  # also after another Ctrl-C
        child.kill()


def sync_run(run: Path) -> dict[str, str | int]:
    """Uploads a run and returns a row; ConnectionError if the server does not answer."""
    if (why := why_silent(wandb_url())) is not None:
        raise ConnectionError(f"{wandb_url()} does not answer ({why}): nothing was uploaded")
    result, steps, note = upload_run(run)
    return {"run": run.name, "result": result, "steps": steps, "note": note}
