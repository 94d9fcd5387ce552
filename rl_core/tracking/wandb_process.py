"""The separate process that sends `metrics.jsonl` to wandb; only this file imports it.

    python -m rl_core.tracking.wandb_process RUN_FOLDER online|upload FINISH_TIMEOUT_S

It reads the file as it grows, until its parent sends how the trainer ended, or is gone. It sends
errors to its parent. No failure of it, or of wandb's service, harms training.

wandb accepts only steps after its last one. So each start asks where wandb's curve ends and sends
the lines of `metrics.jsonl` after that. This fills gaps of an outage, a crash or an offline start;
steps that a resume did again (with the same result) stay as they were. Each line keeps the time
when it was written. wandb's own files are never kept.

If a step has a test, a table of a few of its rollouts is sent with its line.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from rl_core.errors import first_line
from rl_core.runs.rollout_log import samples_of_step
from rl_core.runs.settings_file import leaves, read_settings
from rl_core.system.atomic import alone_in
from rl_core.system.child_process import channel_to_parent
from rl_core.system.network import wandb_url, why_silent
from rl_core.system.plain_files import open_plain, parse_json
from rl_core.system.words import without_middle

_UPLOADING: Final = "uploading"
"""In a run's `wandb/`: all that wandb writes, until it is uploaded."""
_SAMPLES: Final = "samples"
COLUMNS: Final = ("step", "prompt", "response", "answer", "verdict", "score")
_MOST_CHARACTERS: Final = 2_000
"""Of a text in a table; the middle of a longer one is left out."""
_TESTED: Final = "val/accuracy"
"""In the lines of steps with a test."""
_POLL_S: Final = 1.0


def main() -> NoReturn:
    """Follows a run, and exits with 0 if wandb has all of it, or was offline from the start."""
    run_folder = Path(sys.argv[1]).absolute()  # the working folder changes
    mode = sys.argv[2]
    timeout = float(sys.argv[3])
    parent = _Parent(timeout)
    os.nice(10)  # it needs only the CPU time that learner and engines leave
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.pop("WANDB_SERVICE", None)  # of another process, which may end it earlier
    code = 0
    try:
        with alone_in(run_folder / "wandb", wait=False) as alone:
            if not alone:
                raise RuntimeError("another process is sending this run to wandb")
            _work(run_folder, mode, timeout, parent)
    except BaseException as error:  # noqa: BLE001  wandb raises anything, SystemExit too
        parent.tell(say=first_line(error))
        code = 1
    _end_service()
    os._exit(code)  # wandb's exit hooks would wait for the service


def _work(run_folder: Path, mode: str, timeout_s: float, parent: _Parent) -> None:
    """Starts a wandb run, sends the rows until the trainer ends, and waits for the upload."""
    folder = run_folder / "wandb" / _UPLOADING
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # In the user's working folder wandb would read `wandb/settings`, which may name a server.
    os.chdir(folder)
    # Elsewhere wandb would leave files behind. Not TMPDIR: its socket's path would be too long.
    tempfile.tempdir = str(folder)
    os.environ["WANDB_DATA_DIR"] = os.environ["WANDB_CACHE_DIR"] = str(folder)
    os.environ |= {"WANDB_BASE_URL": wandb_url(), "WANDB_DISABLE_GIT": "true"}
    try:
        run = _start(run_folder, folder, timeout_s)
    except Exception as error:
        if mode == "upload":
            raise
        why = first_line(error)
        parent.tell(say=f"offline in this run, `countdown-train sync` uploads it later: {why}")
        return
    sent = _hand_over(
        run,
        NewRows(run_folder / "metrics.jsonl"),
        partial(sample_table, run_folder / "rollouts"),
        parent,
    )
    run.finish(exit_code=parent.exit_code)
    import wandb

    with suppress(Exception, SystemExit):  # it raises the service's exit code
        wandb.teardown()  # so that the service closes its files, and ends by itself
    shutil.rmtree(folder, ignore_errors=True)
    parent.tell(sent=sent)


def _start(run_folder: Path, folder: Path, timeout_s: float) -> Any:
    """Returns a run that continues the server's, or raises whatever wandb finds wrong."""
    config = read_settings(run_folder)
    project = dict(leaves(config)).get("trainer.wandb_project")
    if project is None:
        raise ValueError(f"{run_folder / 'config.yaml'} holds no settings of a run")
    if (why := why_silent(wandb_url())) is not None:
        raise RuntimeError(f"{wandb_url()} does not answer ({why})")
    import wandb

    return wandb.init(
        project=str(project),
        id=run_folder.name,
        name=run_folder.name,
        resume="allow",
        dir=str(folder),
        mode="online",
        config=config,
        settings=wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            x_disable_meta=True,  # host name, command line, user
            x_disable_stats=True,
            x_save_requirements=False,
            init_timeout=10.0,  # a start that takes longer is given up
            finish_timeout=timeout_s,
            finish_timeout_raises=True,
        ),
    )


def _hand_over(
    run: Any, rows: NewRows, samples_of: Callable[[int], list[list[Any]]], parent: _Parent
) -> int:
    next_step = run.starting_step
    sent = 0
    while True:
        last_round = parent.is_done()
        for row in rows.new():
            step = row.pop("step")
            written_at = row.pop("time")
            if step < next_step:
                continue  # the server has it
            # A null is a number that JSON cannot hold.
            values = {name: math.nan if value is None else value for name, value in row.items()}
            values["_timestamp"] = datetime.fromisoformat(written_at).timestamp()
            _log(run, step, values, samples_of(step) if _TESTED in row else [], parent)
            next_step = step + 1
            sent += 1
        if last_round:
            return sent


def _log(
    run: Any, step: int, values: Mapping[str, Any], samples: list[list[Any]], parent: _Parent
) -> None:
    """Logs one row, with a table of samples if there are any and wandb takes it."""
    if samples:
        import wandb

        try:
            table = wandb.Table(columns=list(COLUMNS), data=samples)
            run.log({**values, _SAMPLES: table}, step=step, commit=True)
        except Exception as error:  # noqa: BLE001  a table needs an answer of the server
            parent.tell(say=f"no samples of step {step}: {first_line(error)}")
        else:
            return
    run.log(values, step=step, commit=True)


def sample_table(folder: Path, step: int) -> list[list[Any]]:
    """Returns `COLUMNS` of a few rollouts of a step, with texts of moderate length."""
    return [
        [
            without_middle(value, _MOST_CHARACTERS) if isinstance(value, str) else value
            for value in (row[name] for name in COLUMNS)
        ]
        for row in samples_of_step(folder, step)
    ]


class NewRows:
    """The lines of a growing `metrics.jsonl`, each once, in the order of their steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yields the whole rows that were written since the last call."""
        try:
            file = open_plain(self._path, below=self._path.parent)
        except OSError:
            return
        with file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                with suppress(ValueError):  # a line that a crash cut short
                    yield parse_json(line)


class _Parent:
    """The trainer: a thread waits until it is done, and ends this process `timeout_s` later."""

    def __init__(self, timeout_s: float) -> None:
        self.channel = channel_to_parent()
        self._timeout_s = timeout_s
        self._done = threading.Event()
        self.exit_code = 1
        """Of the trainer: 1 if it failed or died."""
        threading.Thread(target=self._listen, daemon=True).start()

    def is_done(self) -> bool:
        """Waits a second at most for the trainer, and says whether it is done."""
        return self._done.wait(_POLL_S)

    def tell(self, **message: object) -> None:
        """Sends the trainer a text to log (`say`) or how many steps were `sent`, if it is there."""
        with suppress(OSError):
            self.channel.send(message)

    def _listen(self) -> None:
        with suppress(OSError, EOFError):
            self.exit_code = self.channel.receive()["exit_code"]
        self._done.set()
        time.sleep(self._timeout_s)
        self.tell(say="it took too long")
        _end_service()
        os._exit(1)


def _end_service() -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()
            process.wait(2)


if __name__ == "__main__":
    main()
