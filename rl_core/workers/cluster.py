"""The processes of a run, seen from the trainer loop.

The driver holds no tensors: it sends requests and rollouts, and orders who talks to whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import (
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, WorkerDied, first_line
from rl_core.resources.memory_need import why_not_split
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.placement import (
    learner_name,
    loading_queues,
    shares_a_card,
    why_no_shared_card,
)
from rl_core.resources.token_budgets import BUDGETS_FILE
from rl_core.system.atomic import reading
from rl_core.system.process_env import process_environment
from rl_core.types import Rollout
from rl_core.workers.actors import WRITING, LearnerActor, RolloutActor
from rl_core.workers.engines import Engines
from rl_core.workers.learner_ranks import LearnerRanks
from rl_core.workers.nodes import check_nodes, own_node
from rl_core.workers.reservation import Reservation
from rl_core.workers.session import ray_session

_LOG_LINES_SHOWN = 3
_NODE_DIED = "its node has died"
"""How Ray says so of an actor."""
_WARNING_OF_TORCH = "[W"
"""Of its C++: it names no cause, a host without a name for one."""


class Workers:
    """The learner and the rollout engines of one run; made by `Workers.start`."""

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None,
        log_folder: Path,
        room: Reservation,
        *,
        learner: bool,
        on_progress: Callable[[str], None],
    ) -> None:
        self._config = config
        self._log_folder = log_folder
        self._room = room
        self._on_progress = on_progress
        budgets_file = (config.storage.root / BUDGETS_FILE).resolve()

        def load(actor: Any, weights: Any, *policy_version: int) -> Any:
            return actor.load.remote(config, model_path, weights, budgets_file, *policy_version)

        self._load_actor = load
        self.engines = Engines(
            config.rollout.num_engines,
            spawn=lambda name: self._spawn(name, RolloutActor),
            load=load,
            weights=resume_from,
            result=self._result,
            on_progress=on_progress,
            beside_learner=learner and shares_a_card(config),
            in_flight=config.rollout.updates_in_flight,
        )
        num_ranks = config.resources.learner_ranks if learner else 0
        ranks = [self._spawn(learner_name(rank), LearnerActor) for rank in range(num_ranks)]
        self._learner = LearnerRanks(ranks, self._result, on_progress) if learner else None

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

        With `resume_from`, a checkpoint's folder, the engines hold its weights too. Without a
        `learner` there are engines only, for an evaluation. Output goes to `learner.log`,
        `engine_0.log`, ... in `log_folder`, by default a temporary one. `report` hears in words how
        far the start is; `on_progress` the name of a phase when it begins or is a piece further,
        from any thread.

        Raises:
            ValueError: the model cannot be split as asked, or Ray's machines could never hold
                what is.
            OutOfMemory: a model did not fit.
            WorkerDied: a process was killed while it started.
        """
        parts = config.rollout.tensor_parallel_size
        if parts > 1 and (why := why_not_split(ModelShape.from_folder(model_path), parts)):
            raise ValueError(why)
        if learner and (why := why_no_shared_card(config)):
            raise ValueError(why)
        with (
            ray_session(config, model_path, log_folder, learner=learner) as temp_dir,
            _folder_of_logs(config, log_folder, temp_dir) as folder,
        ):
            report("Ray is up")
            room = Reservation(config, learner=learner, report=report)
            model_path = model_path.resolve()
            resume_from = resume_from.resolve() if resume_from else None
            if config.resources.ray_address is not None:
                seen = [folder, model_path, *filter(None, [resume_from])]
                check_nodes(room.nodes() - {own_node()}, seen)
            workers = cls(
                config,
                model_path,
                resume_from,
                folder,
                room,
                learner=learner,
                on_progress=on_progress,
            )
            with nullcontext() if resume_from is None else reading(resume_from):
                workers._load(config, resume_from, report)
            if learner and config.model.load_in_4bit and resume_from is None:
                workers.sync_weights()  # engines have read weights that are not yet rounded
            try:
                yield workers
            finally:
                workers.engines.close()

    @property
    def learner(self) -> LearnerRanks:
        """The learner, of workers that have one."""
        assert self._learner is not None, "an evaluation has engines only"
        return self._learner

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step`; returns its metrics and the rollout log's columns."""
        return self.learner.learn(rollouts, step)

    def sync_weights(self, policy_version: int = 0) -> None:
        """Gives every engine the learner's weights, in place, with the number of their updates."""
        self._on_progress("sync")
        self.engines.release_weights()
        self.engines.set_weights(self.learner.weights(), policy_version)

    def snapshot(self) -> int:
        """Has the learner copy what a checkpoint holds, over the snapshot before."""
        return self.learner.snapshot()

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot's checkpoint into `folder`; the learner works on meanwhile."""
        self.learner.write_snapshot(folder)

    def _spawn(self, name: str, actor: type) -> Any:
        resources, place = self._config.resources, self._room.options(name)
        on_gpu, threads = place["num_gpus"] > 0, resources.rollout_threads
        if actor is LearnerActor:
            # On a CPU the threads of one process are its own, a micro-batch each.
            of_torch = on_gpu or resources.learner_ranks > 1
            threads = resources.learner_threads if of_torch else 1
        environment = process_environment(
            num_threads=threads,
            on_gpu=on_gpu,
            offline=True,
            sleeps=actor is RolloutActor and self._config.rollout.sleep,
        )
        remote = ray.remote(**place, max_restarts=0, concurrency_groups={WRITING: 1})(actor)
        return remote.remote(environment, self._log_folder / f"{name}.log")

    def _load(
        self, config: RunConfig, resume_from: Path | None, report: Callable[[str], None]
    ) -> None:
        """Loads all models at the same time, but for those that share a card."""
        learners = {} if self._learner is None else self._learner.actors
        if len(learners) > 1:
            self.learner.meet(self._hosts(), config.watchdog.stall_s)
        engines = self.engines.actors
        for name in self._room.late:
            self.engines.join_later(name)
            del engines[name]
        queues = loading_queues(self._cards(config, engines | learners))
        loading: dict[Future[Any], tuple[str, list[str]]] = {}

        def load_first(queue: list[str]) -> None:
            name, *rest = queue
            if name in learners:
                loaded = self._load_actor(learners[name], resume_from).future()
            else:
                loaded = self.engines.begin_load(name)
            loading[loaded] = name, rest

        for queue in queues:
            load_first(queue)
        while loading:
            for ready in wait(loading, return_when=FIRST_COMPLETED).done:
                name, rest = loading.pop(ready)
                try:
                    self._result(name, ready)
                except WorkerDied as death:
                    loading[self.engines.start_again(name, death)] = name, rest
                    continue
                self._on_progress("load")
                report(f"{name} is ready")
                if rest:
                    load_first(rest)

    def _hosts(self) -> list[str]:
        """Returns the address of each learner rank's machine."""
        asked = {
            name: actor.__ray_call__.remote(_own_address)
            for name, actor in self.learner.actors.items()
        }
        return [self._result(name, host.future()) for name, host in asked.items()]

    def _cards(
        self, config: RunConfig, actors: Mapping[str, Any]
    ) -> dict[str, set[tuple[str, str]]]:
        """Returns which cards Ray has given to each process, as (machine, number on it)."""
        resources = config.resources
        if not (resources.learner_gpus or resources.rollout_gpus):
            return {name: set() for name in actors}
        asked = {name: actor.__ray_call__.remote(_own_cards) for name, actor in actors.items()}
        return {name: self._result(name, cards.future()) for name, cards in asked.items()}

    def _result(self, name: str, pending: Future[Any]) -> Any:
        """Waits for a worker's result, and turns Ray's errors into ours.

        Through a future, because inside `ray.get` an exception raised by a signal handler is lost
        or replaced: Prefect's cancellation, for one.
        """
        try:
            return pending.result()
        except RayTaskError as error:
            if type(error.cause) is RayError:  # an exception that cannot be sent
                log = self._log_folder / f"{name}.log"
                raise RuntimeError(f"{name} raised what cannot be sent; see {log}") from error
            if isinstance(error.cause, RayError):  # its argument was lost: the learner's weights
                raise WorkerDied(
                    "learner", self._last_words("learner", str(error.cause))
                ) from error
            if isinstance(error.cause, Exception):  # its own message is a whole traceback
                raise error.cause from error
            raise
        except OutOfMemoryError as error:
            raise OutOfMemory(name, "killed because the machine's memory ran low") from error
        except (RayActorError, WorkerCrashedError) as error:
            if "running low on memory" in str(error):
                raise OutOfMemory(name, "killed because the machine's memory ran low") from error
            raise WorkerDied(name, self._last_words(name, str(error))) from error
        # Its head or its raylet is gone, and says so in many ways.
        except (RayError, ConnectionError) as error:
            raise WorkerDied(name, f"Ray has lost it ({first_line(error)})") from error

    def _last_words(self, name: str, why: str) -> str:
        log = self._log_folder / f"{name}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        telling = (line.strip() for line in lines if not line.startswith(_WARNING_OF_TORCH))
        said = [line for line in telling if line][-_LOG_LINES_SHOWN:]
        how = "machine is gone" if _NODE_DIED in why else "process is gone (killed?)"
        return f"its {how}; {log} ends with: {' | '.join(said) or '(nothing)'}"


@contextmanager
def _folder_of_logs(config: RunConfig, asked: Path | None, temp_dir: Path) -> Iterator[Path]:
    """Yields the folder asked for, else a temporary one, which all of Ray's machines see."""
    if asked is None and config.resources.ray_address is not None:
        root = config.storage.root.resolve()
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".workers-", dir=root, ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    folder = (asked or temp_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _own_address(actor: object) -> str:
    """Runs within an actor: the address of its machine."""
    return str(ray.util.get_node_ip_address())


def _own_cards(actor: object) -> set[tuple[str, str]]:
    """Runs within an actor."""
    context = ray.get_runtime_context()
    return {(context.get_node_id(), card) for card in context.get_accelerator_ids()["GPU"]}
