"""Ray's session, a private one for this run or a cluster that is joined, and its errors."""

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import ray
from ray._private.node import Node
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.job_config import JobConfig

from rl_core.config.run import RunConfig
from rl_core.errors import RAY, OutOfMemory, RayNotStarted, WorkerDied, first_line
from rl_core.resources.placement import LEARNER, asked_of_ray
from rl_core.system.process_env import apply_defaults
from rl_core.system.process_group import children_that_mention, end_processes, session_folder
from rl_core.system.words import cut, in_one_line, printable
from rl_core.workers.ray_auth import address_of_auto, private, reread_settings, send_token

_TELLING: Final = ("gcs_server.err", "raylet.err", "gcs_server.out", "raylet.out")
"""Logs of the processes that must be up; Ray marks errors with E, fatal ones with C."""
_NOT_NEEDED: Final = ("start_monitor", "start_api_server", "start_log_monitor")
"""Methods that start Ray's autoscaler, its dashboard, and what prints the output of workers.

Each is a process that loads Python and Ray, and all others wait for the dashboard: its option
removes the pages, not the process. Only the start of a Ray calls them.
"""


@contextmanager
def ray_session(
    config: RunConfig, model_path: Path, log_folder: Path | None, *, learner: bool
) -> Iterator[Path]:
    """Connects to `resources.ray_address`, or runs a private Ray on loopback; yields a temp folder.

    On leaving, however that happens, Ray's processes and the folder are gone.
    """
    apply_defaults()
    with session_folder() as folder, _stopping_signals() as restore_handlers:
        # Inside our folder, which other users cannot enter: Ray makes its own open to everybody.
        temp_dir = folder / "r"
        address = config.resources.ray_address
        try:
            try:
                if address is None:
                    for name in _NOT_NEEDED:
                        setattr(Node, name, lambda *args, **options: None)
                    with private():
                        ray.init(**_private_options(config, model_path, temp_dir, learner=learner))
                else:
                    send_token(address)
                    ray.init(**options_of_cluster(address))
            except SystemExit:  # a SIGTERM while Ray starts, caught by Ray's own handler
                restore_handlers()
                signal.raise_signal(signal.SIGTERM)
                raise
            except Exception as error:
                # A Ray that is too slow to start, on a busy machine, raises a plain Exception.
                is_rays = isinstance(error, RuntimeError | ConnectionError | RayError)
                if not is_rays and type(error) is not Exception:
                    raise
                why = why_not_started(error, temp_dir, log_folder)
                raise RayNotStarted(RAY, f"it did not start ({why})") from error
            restore_handlers()
            yield folder
        finally:
            processes = children_that_mention(folder)
            ray.shutdown()
            reread_settings()
            # A worker notices a moment later that its raylet is gone; one deep in C++ may not.
            end_processes(processes, patience_s=5.0)


class _NotInWorkingFolder(JobConfig):  # type: ignore[misc]  # Ray has no types
    """Keeps Ray's workers from looking for every module in this process's working folder first."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True  # then Ray adds neither that folder nor the script's


def options_of_cluster(address: str) -> dict[str, Any]:
    """Returns the options of `ray.init` to join a running Ray, from one of its machines."""
    if address == "auto" and (address := address_of_auto() or "") == "":
        raise ConnectionError("resources.ray_address=auto: `ray start` was not called here")
    return {"address": address, "log_to_driver": False, "job_config": _NotInWorkingFolder()}


def _private_options(
    config: RunConfig, model_path: Path, temp_dir: Path, *, learner: bool
) -> dict[str, Any]:
    bundles = asked_of_ray(config, learner=learner).values()
    weight_bytes = sum(file.stat().st_size for file in model_path.glob("*.safetensors"))
    return {
        "address": "local",
        "num_cpus": int(sum(bundle["CPU"] for bundle in bundles)),
        "num_gpus": None if any("GPU" in bundle for bundle in bundles) else 0,
        # Two versions of the weights in flight, each up to twice the file (bfloat16 on disk).
        "object_store_memory": 200 * 2**20 + 4 * weight_bytes,
        "include_dashboard": False,
        "job_config": _NotInWorkingFolder(),
        "log_to_driver": False,
        "logging_level": "ERROR",
        "_temp_dir": str(temp_dir),
        "_system_config": {
            # Seconds without a head after which Ray ends this process by `_exit`; 60 by default.
            "gcs_rpc_server_reconnect_timeout_s": 10,
            "free_objects_period_milliseconds": 0,  # old weights go before new ones come
        },
        "_node_ip_address": "127.0.0.1",
    }


@contextmanager
def _stopping_signals() -> Iterator[Callable[[], None]]:
    """Keeps SIGINT and SIGTERM as they were, though `ray.init` replaces SIGTERM's handler.

    Yields a function to call after `ray.init`. If SIGTERM had its default, which ends a process
    without any clean-up, it raises SystemExit within the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    within = dict(before)
    if within[signal.SIGTERM] in (signal.SIG_DFL, None):
        within[signal.SIGTERM] = _exit_on_signal

    def install(handlers: Mapping[signal.Signals, Any]) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    install(within)
    try:
        yield lambda: install(within)
    finally:
        install(before)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def why_not_started(error: Exception, session: Path, keep_in: Path | None) -> str:
    """Returns in one line why Ray did not start, with the last error of its processes.

    Ray's messages name logs in its session's folder, which is deleted when the start has failed.
    With `keep_in` the logs are copied there, and the line names it.
    """
    logs = session / "session_latest" / "logs"
    reason = in_one_line(first_line(error))
    last = _last_words(logs)
    if keep_in is None or not logs.is_dir():
        return "; ".join(filter(None, (reason, last)))
    kept = keep_in / "ray"
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(logs, kept, symlinks=True)
    except OSError as failed:
        return f"{reason}; {last}; its logs could not be kept ({first_line(failed)})"
    for named in (logs, logs.resolve()):  # session_latest is a link
        reason = reason.replace(str(named), str(kept))
    return "; ".join(filter(None, (reason, last, f"all its logs: {kept}")))


def _last_words(logs: Path) -> str:
    """Returns the last error that a daemon logged, or ""; only stack frames come after it."""
    for name in _TELLING:
        try:
            lines = (logs / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        errors = [line.strip() for line in lines if " E " in line or " C " in line]
        if errors:
            return f"{name} says: {printable(cut(errors[-1], 200))}"
    return ""


def result_of(logs: Path, name: str, pending: Future[Any]) -> Any:
    """Returns a worker's result, or raises its error as one of ours.

    Through a future, because inside `ray.get` an exception raised by a signal handler is lost
    or replaced: Prefect's cancellation, for one.
    """
    try:
        return pending.result()
    except RayTaskError as error:
        if type(error.cause) is RayError:  # an exception that cannot be sent
            log = logs / f"{name}.log"
            raise RuntimeError(f"{name} raised what cannot be sent; see {log}") from error
        if isinstance(error.cause, RayError):  # its argument was lost: the learner's weights
            raise _death(logs, LEARNER, error.cause) from error
        if isinstance(error.cause, Exception):  # its own message is a whole traceback
            raise error.cause from error
        raise
    except (OutOfMemoryError, RayActorError, WorkerCrashedError) as error:
        if isinstance(error, OutOfMemoryError) or "running low on memory" in str(error):
            raise OutOfMemory(name, "killed because the machine's memory ran low") from error
        raise _death(logs, name, error) from error
    # Ray's head or raylet is gone, which raises many kinds of errors.
    except (RayError, ConnectionError) as error:
        raise WorkerDied(name, f"Ray has lost it ({first_line(error)})") from error


def _death(logs: Path, name: str, error: RayError) -> WorkerDied:
    log = logs / f"{name}.log"
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    # A warning of torch's C++, [W, names no cause: a host without a name, say.
    telling = (line.strip() for line in lines if not line.startswith("[W"))
    last_lines = [line for line in telling if line][-3:]
    # Ray's own words for a dead actor.
    how = "machine is gone" if "its node has died" in str(error) else "process is gone (killed?)"
    ends = f"{log} ends with: {' | '.join(last_lines) or '(nothing)'}"
    return WorkerDied(name, f"its {how}; {ends}")
