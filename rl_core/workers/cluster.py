"""Ray processes around learner and engines, seen from the trainer loop (the only ray import).

The driver holds no tensors: it sends requests and rollouts, and orders who talks to whom.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from rl_core.config.run import RunConfig
from rl_core.errors import RAY, OutOfMemory, WorkerDied, first_line
from rl_core.resources.placement import LEARNER, engine_name, loading_queues
from rl_core.resources.token_budgets import BUDGETS_FILE, log_out_of_memory, merge_metrics
from rl_core.rollout.protocol import in_order
from rl_core.system.atomic import reading
from rl_core.system.process_env import apply_defaults, process_environment
from rl_core.system.process_group import children_that_mention, session_folder
from rl_core.types import (
    Completion,
    GenerationRequest,
    Rollout,
    SamplingSettings,
    SnapshotBytes,
)
from rl_core.workers.actors import LearnerActor, RolloutActor
from rl_core.workers.ray_auth import send_token
from rl_core.workers.ray_logs import why_not_started

_OBJECT_STORE_BYTES = 200 * 2**20
_WRITING = "writing"
"""Ray's concurrency group, a thread of the actor, for what goes on beside its other calls."""
_EXIT_TIMEOUT_S = 5.0
_HEAD_TIMEOUT_S = 10
"""Ray ends this process, by its own `_exit`, when its head is gone for so long; 60 by default."""
_LOG_LINES_SHOWN = 3
_PORTIONS = 16
"""Calls in which an engine hands over its completions: each costs about a millisecond."""


class Workers:
    """The learner and the rollout engines of one run; made by `Workers.start`."""

    def __init__(
        self,
        config: RunConfig,
        log_folder: Path,
        *,
        learner: bool,
        on_progress: Callable[[str], None],
    ) -> None:
        self._log_folder = log_folder
        self._on_progress = on_progress
        self._engines_sleep = config.rollout.sleep
        resources = config.resources
        self._engines = [
            self._spawn(
                engine_name(i), RolloutActor, resources.rollout_threads, resources.rollout_gpus
            )
            for i in range(config.rollout.num_engines)
        ]
        self._learner: Any = (
            self._spawn(LEARNER, LearnerActor, resources.learner_threads, resources.learner_gpus)
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
        on_progress: Callable[[str], None] = lambda phase: None,
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
            on_progress: hears the name of a phase when it begins or is a piece further; from any
                thread.

        Raises:
            OutOfMemory: a model did not fit.
            WorkerDied: a process was killed while it started.
        """
        with _ray_session(config, model_path, log_folder, learner=learner) as temp_dir:
            report("Ray is up")
            folder = (log_folder or temp_dir).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            workers = cls(config, folder, learner=learner, on_progress=on_progress)
            with nullcontext() if resume_from is None else reading(resume_from):
                workers._load(config, model_path, resume_from, report)
            yield workers

    def stream(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        phase: str = "gen",
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions of all engines with their requests' positions, soon after each ended.

        In no fixed order, a sixteenth of an engine's share at a time. Where memory runs out, those
        under way are generated again, fewer at a time.

        Args:
            requests: what to generate.
            sampling: how.
            phase: what it is for, `gen` or `evaluate`, if memory should run out.
        """
        self._on_progress("gen")
        share, rest = divmod(len(requests), len(self._engines))
        ends = itertools.accumulate(share + (i < rest) for i in range(len(self._engines)))
        sources: dict[Future[Any], tuple[int, int]] = {}
        for i, (start, end) in enumerate(itertools.pairwise((0, *ends))):
            engine, limit = self._engines[i], -(-(end - start) // _PORTIONS) or 1
            # All are asked for at once, so that an engine need not wait for us between two.
            pending = [engine.begin.remote(list(requests[start:end]), sampling, phase)]
            pending += [engine.next_finished.remote(limit) for _ in range(start, end, limit)]
            sources |= {portion.future(): (i, start) for portion in pending}
        for portion in as_completed(sources):
            i, start = sources[portion]
            self._on_progress("gen")
            for position, completion in self._result(engine_name(i), portion) or ():
                yield start + position, completion

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request of an evaluation, in order, from all engines."""
        completions = in_order(self.stream(requests, sampling, "evaluate"))
        log_out_of_memory(None, self.end_engine_step())
        return completions

    def end_engine_step(self) -> dict[str, float]:
        """Returns the engines' metrics of memory since the last call, see `AdaptiveEngine`."""
        return merge_metrics(self._all_engines(e.end_step.remote() for e in self._engines))

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step` (counted from 1, the first that is not yet learned).

        Returns:
            The step's metrics, and the rollout log's columns with one number per rollout.
        """
        self._on_progress("learn")
        start = time.perf_counter()
        pending = self._learner.learn.remote(list(rollouts), step).future()
        metrics, columns = self._result("learner", pending)
        learner_s = sum(s for name, s in metrics.items() if name.startswith("timing_s/"))
        # From process to process and into tensors: what the learner's phases leave of the call.
        metrics["timing_s/handover"] = time.perf_counter() - start - learner_s
        return metrics, columns

    def sync_weights(self) -> None:
        """Gives every engine the learner's weights, in place."""
        self._on_progress("sync")
        # A reference, not a value: the tensors go from process to process, not through this one.
        weights = self._learner.weights.remote()
        self._all_engines(engine.update_weights.remote(weights) for engine in self._engines)

    def load_weights(self, folder: Path) -> None:
        """Gives every engine the weights of a saved model of the same architecture."""
        folder = folder.resolve()
        with reading(folder):
            self._all_engines(engine.load_weights.remote(folder) for engine in self._engines)

    def snapshot(self) -> SnapshotBytes:
        """Has the learner copy what a checkpoint holds, over the snapshot before."""
        self._on_progress("save")
        size: SnapshotBytes = self._result("learner", self._learner.snapshot.remote().future())
        return size

    def write_snapshot(self, folder: Path, *, model_alone: bool = False) -> None:
        """Writes the last snapshot's checkpoint into `folder`; the learner works on meanwhile.

        Args:
            folder: an empty folder.
            model_alone: leaves out what only a resume needs.
        """
        self._on_progress("save")
        write = self._learner.write_snapshot.options(concurrency_group=_WRITING)
        written = write.remote(folder.resolve(), model_alone=model_alone)
        self._result("learner", written.future())

    def _spawn(self, name: str, actor: type, num_threads: int, num_gpus: float) -> Any:
        # On a CPU the learner's threads are its own, a micro-batch each: torch gets one of them.
        torch_threads = 1 if actor is LearnerActor and num_gpus == 0 else num_threads
        environment = process_environment(
            num_threads=torch_threads,
            on_gpu=num_gpus > 0,
            offline=True,
            sleeps=actor is RolloutActor and self._engines_sleep,
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
        """Loads all models at the same time, but for those that share a card."""
        model_path = model_path.resolve()
        resume_from = resume_from.resolve() if resume_from else None
        budgets = (config.storage.root / BUDGETS_FILE).resolve()
        actors = {engine_name(i): engine for i, engine in enumerate(self._engines)}
        if self._learner is not None:
            actors[LEARNER] = self._learner
        queues = loading_queues(self._cards(config, actors))
        loading: dict[Future[Any], tuple[str, list[str]]] = {}

        def load_first(queue: list[str]) -> None:
            name, *rest = queue
            loaded = actors[name].load.remote(config, model_path, resume_from, budgets)
            loading[loaded.future()] = name, rest

        for queue in queues:
            load_first(queue)
        while loading:
            for ready in wait(loading, return_when=FIRST_COMPLETED).done:
                name, rest = loading.pop(ready)
                self._result(name, ready)
                self._on_progress("load")
                report(f"{name} is ready")
                if rest:
                    load_first(rest)

    def _cards(
        self, config: RunConfig, actors: Mapping[str, Any]
    ) -> dict[str, set[tuple[str, str]]]:
        """Returns which cards Ray has given to each process, as (machine, number on it)."""
        resources = config.resources
        if not (resources.learner_gpus or resources.rollout_gpus):
            return {name: set() for name in actors}
        asked = {name: actor.__ray_call__.remote(_own_cards) for name, actor in actors.items()}
        return {name: self._result(name, cards.future()) for name, cards in asked.items()}

    def _all_engines(self, pending: Iterator[Any]) -> list[Any]:
        started = [result.future() for result in pending]
        return [self._result(engine_name(i), result) for i, result in enumerate(started)]

    def _result(self, name: str, pending: Future[Any]) -> Any:
        """Waits for a worker's result, and turns Ray's errors into ours.

        Through a future, because inside `ray.get` an exception raised by a signal handler is lost
        or replaced: Prefect's cancellation, for one.
        """
        try:
            return pending.result()
        except RayTaskError as error:
            if isinstance(error.cause, RayError):  # its argument was lost: the learner's weights
                raise WorkerDied("learner", self._last_words("learner")) from error
            if isinstance(error.cause, Exception):  # its own message is a whole traceback
                raise error.cause from error
            raise
        except OutOfMemoryError as error:
            raise OutOfMemory(name, "killed because the machine's memory ran low") from error
        except (RayActorError, WorkerCrashedError) as error:
            if "running low on memory" in str(error):
                raise OutOfMemory(name, "killed because the machine's memory ran low") from error
            raise WorkerDied(name, self._last_words(name)) from error
        except RayError as error:  # its head or its raylet is gone, and says so in many ways
            raise WorkerDied(name, f"Ray has lost it ({first_line(error)})") from error

    def _last_words(self, name: str) -> str:
        log = self._log_folder / f"{name}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        said = [line.strip() for line in lines if line.strip()][-_LOG_LINES_SHOWN:]
        return f"its process is gone (killed?); {log} ends with: {' | '.join(said) or '(nothing)'}"


def _own_cards(actor: object) -> set[tuple[str, str]]:
    """Runs within an actor."""
    context = ray.get_runtime_context()
    return {(context.get_node_id(), card) for card in context.get_accelerator_ids()["GPU"]}


@contextmanager
def _ray_session(
    config: RunConfig, model_path: Path, log_folder: Path | None, *, learner: bool
) -> Iterator[Path]:
    """Connects to `resources.ray_address`, or runs a private Ray on loopback; yields a temp folder.

    On leaving, however that happens, Ray's processes and the folder are gone.
    """
    apply_defaults()
    with session_folder() as temp_dir, _stopping_signals() as restore_handlers:
        try:
            try:
                ray.init(**_init_options(config, model_path, temp_dir, learner=learner))
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
                raise WorkerDied(RAY, f"it did not start ({why})") from error
            restore_handlers()
            yield temp_dir
        finally:
            processes = children_that_mention(temp_dir)
            ray.shutdown()
            # A worker notices a moment later that its raylet is gone; one deep in C++ may not.
            for process in psutil.wait_procs(processes, timeout=_EXIT_TIMEOUT_S)[1]:
                process.kill()


def _init_options(
    config: RunConfig, model_path: Path, temp_dir: Path, *, learner: bool
) -> dict[str, Any]:
    resources = config.resources
    if resources.ray_address is not None:
        send_token(resources.ray_address, reread=lambda: ray._raylet.Config.initialize(""))
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
        "_system_config": {"gcs_rpc_server_reconnect_timeout_s": _HEAD_TIMEOUT_S},
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
