"""Ray processes around learner and engines, seen from the trainer loop (the only ray import).

The driver holds no tensors: it sends requests and rollouts, and orders who talks to whom.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from rl_core.actors import LearnerActor, RolloutActor
from rl_core.config import RunConfig
from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.process_env import apply_defaults, process_environment
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings

_LONGEST_TEMP_ROOT = 30
"""Characters: Ray's sockets lie about 75 below it, and a unix socket's path may have 107."""
_OBJECT_STORE_BYTES = 200 * 2**20
_WRITING = "writing"
"""Ray's concurrency group, a thread of the actor, for what goes on beside its other calls."""
_EXIT_TIMEOUT_S = 5.0
_LOG_LINES_SHOWN = 3


class Workers:
    """The learner and the rollout engines of one run; made by `Workers.start`."""

    def __init__(self, config: RunConfig, log_folder: Path, *, learner: bool) -> None:
        self._log_folder = log_folder
        resources = config.resources
        self._engines = [
            self._spawn(
                f"engine_{i}", RolloutActor, resources.rollout_threads, resources.rollout_gpus
            )
            for i in range(config.rollout.num_engines)
        ]
        self._learner: Any = (
            self._spawn("learner", LearnerActor, resources.learner_threads, resources.learner_gpus)
            if learner
            else None
        )

    @classmethod
    @contextmanager
    def start(
        cls,
        config: RunConfig,
        model_path: Path,
        *,
        resume_from: Path | None = None,
        learner: bool = True,
        log_folder: Path | None = None,
        report: Callable[[str], None] = lambda message: None,
    ) -> Iterator[Workers]:
        """Starts all processes, yields when all are ready, and leaves none behind.

        Args:
            config: the run's settings.
            model_path: folder of the model that everyone starts from.
            resume_from: a checkpoint folder; the engines then hold its weights too.
            learner: False for an evaluation, which needs engines only.
            log_folder: where each process's output goes (`learner.log`, `engine_0.log`, ...); by
                default a temporary folder.
            report: hears in words how far the start is.

        Raises:
            OutOfMemory: a model did not fit.
            WorkerDied: a process was killed while it started.
        """
        with _ray_session(config, model_path, learner=learner) as temp_dir:
            report("Ray is up")
            folder = (log_folder or temp_dir).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            workers = cls(config, folder, learner=learner)
            workers._load(config, model_path, resume_from, report)
            yield workers

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request, in their order, from all engines at once."""
        share, rest = divmod(len(requests), len(self._engines))
        ends = itertools.accumulate(share + (i < rest) for i in range(len(self._engines)))
        parts = itertools.pairwise((0, *ends))
        completions = self._all_engines(
            engine.generate.remote(list(requests[start:end]), sampling)
            for engine, (start, end) in zip(self._engines, parts, strict=True)
        )
        return [completion for part in completions for completion in part]

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step` (counted from 1, the first that is not yet learned).

        Returns:
            The step's metrics, and the rollout log's columns with one number per rollout.
        """
        start = time.perf_counter()
        pending = self._learner.learn.remote(list(rollouts), step).future()
        metrics, columns = self._result("learner", pending)
        learner_s = sum(s for name, s in metrics.items() if name.startswith("timing_s/"))
        # From process to process and into tensors: what the learner's phases leave of the call.
        metrics["timing_s/handover"] = time.perf_counter() - start - learner_s
        return metrics, columns

    def sync_weights(self) -> None:
        """Gives every engine the learner's weights, in place."""
        # A reference, not a value: the tensors go from process to process, not through this one.
        weights = self._learner.weights.remote()
        self._all_engines(engine.update_weights.remote(weights) for engine in self._engines)

    def load_weights(self, folder: Path) -> None:
        """Gives every engine the weights of a saved model of the same architecture."""
        self._all_engines(engine.load_weights.remote(folder.resolve()) for engine in self._engines)

    def snapshot(self) -> None:
        """Has the learner copy what a checkpoint holds, over the snapshot before."""
        self._result("learner", self._learner.snapshot.remote().future())

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot's checkpoint into `folder`; the learner works on meanwhile."""
        write = self._learner.write_snapshot.options(concurrency_group=_WRITING)
        self._result("learner", write.remote(folder.resolve()).future())

    def _spawn(self, name: str, actor: type, num_threads: int, num_gpus: float) -> Any:
        # On a CPU the learner's threads are its own, a micro-batch each: torch gets one of them.
        torch_threads = 1 if actor is LearnerActor and num_gpus == 0 else num_threads
        environment = process_environment(
            num_threads=torch_threads, on_gpu=num_gpus > 0, offline=True
        )
        remote = ray.remote(
            num_cpus=num_threads,
            num_gpus=num_gpus,
            max_restarts=0,
            concurrency_groups={_WRITING: 1},
        )(actor)
        return remote.remote(environment, self._log_folder / f"{name}.log")

    def _load(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None,
        report: Callable[[str], None],
    ) -> None:
        """Loads all models at the same time."""
        model_path = model_path.resolve()
        resume_from = resume_from.resolve() if resume_from else None
        loading = {
            engine.load.remote(config, resume_from or model_path).future(): f"engine_{i}"
            for i, engine in enumerate(self._engines)
        }
        if self._learner is not None:
            loading[self._learner.load.remote(config, model_path, resume_from).future()] = "learner"
        for ready in as_completed(loading):
            self._result(loading[ready], ready)
            report(f"{loading[ready]} is ready")

    def _all_engines(self, pending: Iterator[Any]) -> list[Any]:
        started = [result.future() for result in pending]
        return [self._result(f"engine_{i}", result) for i, result in enumerate(started)]

    def _result(self, name: str, pending: Future[Any]) -> Any:
        """Waits for a worker's result, and turns Ray's errors into ours.

        Through a future, because inside `ray.get` an exception raised by a signal handler is lost
        or replaced: Prefect's cancellation, for one.
        """
        try:
            return pending.result()
        except RayTaskError as error:
            if isinstance(error.cause, Exception):  # its own message is a whole traceback
                raise error.cause from error
            raise
        except OutOfMemoryError as error:
            raise OutOfMemory(name, "killed because the machine's memory ran low") from error
        except (RayActorError, WorkerCrashedError) as error:
            if "running low on memory" in str(error):
                raise OutOfMemory(name, "killed because the machine's memory ran low") from error
            raise WorkerDied(name, self._last_words(name)) from error

    def _last_words(self, name: str) -> str:
        log = self._log_folder / f"{name}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        said = [line.strip() for line in lines if line.strip()][-_LOG_LINES_SHOWN:]
        return f"its process is gone (killed?); {log} ends with: {' | '.join(said) or '(nothing)'}"


@contextmanager
def _ray_session(config: RunConfig, model_path: Path, *, learner: bool) -> Iterator[Path]:
    """Connects to `resources.ray_address`, or runs a private Ray on loopback; yields a temp folder.

    On leaving, however that happens, Ray's processes and the folder are gone.
    """
    apply_defaults()
    temp_dir = Path(tempfile.mkdtemp(prefix="rl-", dir=_short_temp_root()))
    with _stopping_signals() as put_back:
        try:
            try:
                ray.init(**_init_options(config, model_path, temp_dir, learner=learner))
            except SystemExit:  # a SIGTERM while Ray starts, caught by Ray's own handler
                put_back()
                signal.raise_signal(signal.SIGTERM)
                raise
            put_back()
            yield temp_dir
        finally:
            daemons = [p for p in psutil.Process().children() if _mentions(p, temp_dir)]
            family = [process for daemon in daemons for process in _family(daemon)]
            ray.shutdown()
            # A worker notices a moment later that its raylet is gone; one deep in C++ may not.
            for process in psutil.wait_procs(family, timeout=_EXIT_TIMEOUT_S)[1]:
                process.kill()
            shutil.rmtree(temp_dir, ignore_errors=True)


def _init_options(
    config: RunConfig, model_path: Path, temp_dir: Path, *, learner: bool
) -> dict[str, Any]:
    resources = config.resources
    if resources.ray_address is not None:
        return {"address": resources.ray_address, "log_to_driver": False}
    num_threads = resources.rollout_threads * config.rollout.num_engines
    weight_bytes = sum(file.stat().st_size for file in model_path.glob("*.safetensors"))
    return {
        "address": "local",
        "num_cpus": num_threads + (resources.learner_threads if learner else 0),
        "num_gpus": None if resources.learner_gpus or resources.rollout_gpus else 0,
        # Two versions of the weights in flight, each up to twice the file (bfloat16 on disk).
        "object_store_memory": _OBJECT_STORE_BYTES + 4 * weight_bytes,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "_temp_dir": str(temp_dir),
        "_node_ip_address": "127.0.0.1",
    }


@contextmanager
def _stopping_signals() -> Iterator[Callable[[], None]]:
    """Keeps SIGINT and SIGTERM as they were, though `ray.init` replaces SIGTERM's handler.

    Yields a function to call after `ray.init`. Where SIGTERM had its default, which ends a process
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


def _short_temp_root() -> str:
    """Returns the temp folder, or /tmp where its path leaves no room for Ray's sockets."""
    root = tempfile.gettempdir()
    return root if len(root) <= _LONGEST_TEMP_ROOT else "/tmp"


def _mentions(process: psutil.Process, path: Path) -> bool:
    try:
        return any(str(path) in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
