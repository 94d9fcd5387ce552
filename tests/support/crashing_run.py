"""A training run that kills itself and all its processes by SIGKILL; a program of its own.

    python -m tests.support.crashing_run CONFIG MODEL STEP DELAY

CONFIG is the settings as JSON. It ends when the first files of STEP's checkpoint lie there, and
DELAY seconds have passed, but before the save is done.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rl_core.config.run import RunConfig
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

from tests.rl_core.test_trainer import train_until  # noqa: E402  # loads transformers


def die() -> None:
    # A save that fails costs the save alone: an error here would let the run live on.
    with contextlib.suppress(psutil.Error, OSError):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    settings, model, crash_step, delay = sys.argv[1:]

    def write(write: Callable[[Path], None], folder: Path) -> None:
        if f"step_{int(crash_step):06d}" in folder.name:
            threading.Thread(target=write, args=(folder,), daemon=True).start()
            while not any(folder.iterdir()):
                time.sleep(0.001)
            time.sleep(float(delay))
            die()
        write(folder)

    train_until(RunConfig.model_validate_json(settings), Path(model), write=write)


if __name__ == "__main__":
    main()
