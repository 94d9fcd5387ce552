"""The processes of a run, seen from the trainer loop; all learner ranks get the same calls.

The driver holds no tensors: it sends requests and rollouts, and directs all transfers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import ray

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, RankLost, WorkerDied
from rl_core.resources.memory_need import why_not_split
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.placement import LEARNER, learner_name, loading_queues, shares_a_card
from rl_core.resources.token_budgets import merge_metrics
from rl_core.system.atomic import reading
from rl_core.system.model_folder import adapter_in
from rl_core.system.process_env import process_environment
from rl_core.system.waits import START, Waits
from rl_core.types import Rollout
from rl_core.workers.actors import WRITING, LearnerActor, RolloutActor
from rl_core.workers.engine_process import EngineProcess
from rl_core.workers.engines import Engines
from rl_core.workers.kept import KeptEngines
from rl_core.workers.nodes import check_nodes, own_node
from rl_core.workers.reservation import Reservation
from rl_core.workers.session import ray_session, result_of


class Workers:
    """The learner (one process, or ranks with a share of the weights each) and the engines."""

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None,
        place: Place,
        *,
        learner: bool,
        policy_version: int,
        waits: Waits,
        processes: Sequence[EngineProcess] = (),
    ) -> None:
        self._config = config
        self._place = place
        self._result = partial(result_of, place.logs)
        self._waits = waits
        self._is_new = not processes
        self.has_learned = False

        def load(actor: Any, weights: Any, *policy_version: int) -> Any:
            return actor.load.remote(config, model_path, weights, *policy_version)

        self._load_actor = load
        self.engines = Engines(
            config.rollout.num_engines,
            spawn=lambda name: self._spawn(name, RolloutActor),
            load=load,
            weights=None if learner and _is_adapter(resume_from) else resume_from,
            policy_version=policy_version,
            result=self._result,
            waits=waits,
            stall_s=config.watchdog.stall_s,
            beside_learner=learner and shares_a_card(config),
            processes=processes,
        )
        names = map(learner_name, range(config.resources.learner_ranks if learner else 0))
        self.ranks = {name: self._spawn(name, LearnerActor) for name in names}
        """Ray's handles of the learner's processes by name."""
        self._digests: dict[int, Future[Any]] = {}

    @classmethod
    @contextmanager
    def start(
        cls,
        config: RunConfig,
        model_path: Path,
        *,
        resume_from: Path | None = None,
        policy_version: int = 0,
        learner: bool = True,
        log_folder: Path | None = None,
        report: Callable[[str], None] = lambda message: None,
        waits: Waits | None = None,
        kept: KeptEngines[Workers] | None = None,
    ) -> Iterator[Workers]:
        """Starts all processes, yields when all are ready, and leaves none behind.

        `kept` may have Ray and the engines of the attempt before, and may keep them.

        With `resume_from`, a checkpoint's folder, the engines hold its weights too, which
        `policy_version` updates made. Without a `learner` there are engines only, for an
        evaluation. Output goes to `learner.log`, `engine_0.log`, ... in `log_folder`, by default a
        temporary one. `report` gets messages on the start's progress; `waits` has what is not
        finished.

        Raises:
            ValueError: the model cannot be split as set, or Ray never has the room that is set.
            OutOfMemory: a model did not fit.
            WorkerDied: a process was killed while it started.
        """
        parts = config.rollout.tensor_parallel_size
        if parts > 1 and (why := why_not_split(ModelShape.from_folder(model_path), parts)):
            raise ValueError(why)
        waits = waits or Waits()
        kept = kept or KeptEngines[Workers]()
        model_path = model_path.resolve()
        resume_from = resume_from.resolve() if resume_from else None
        with kept.attempt(config, model_path) as before:
            if before is None:
                waits.begin(START, "Ray", "Ray")
                session = _session(config, model_path, log_folder, report, learner=learner)
                place = kept.held.enter_context(session)
                waits.end(START, "Ray")
            else:
                place = before._place
                report("the engines of the last attempt are used again")
            seen = [place.logs, model_path, *filter(None, [resume_from])]
            if config.resources.ray_address is not None:
                check_nodes(place.room.nodes() - {own_node()}, seen)
            workers = cls(
                config,
                model_path,
                resume_from,
                place,
                learner=learner,
                policy_version=policy_version,
                waits=waits,
                processes=before.engines.processes if before else (),
            )
            with nullcontext() if resume_from is None else reading(resume_from):
                workers._load(resume_from, report)
            is_rounded = config.model.load_in_4bit and resume_from is None
            if learner and (before or is_rounded or _is_adapter(resume_from)):
                workers.sync_weights(policy_version)  # engines have others, or the base's
            elif learner:
                workers._note_digest(policy_version, gathers=True)
            kept.workers = workers
            try:
                yield workers
            finally:
                workers.engines.close()

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step`: counted from 1, the first that is not yet learned.

        Returns the step's metrics, and the rollout log's columns with one number per rollout.
        """
        if not self._config.rollout.staleness:
            self.engines.release_weights()  # nobody generates before `sync_weights`
        start = time.perf_counter()
        results = self._together(
            actor.learn.remote(list(rollouts), step) for actor in self.ranks.values()
        )
        self.has_learned = True
        metrics, columns = results[0]
        learner_s = sum(s for name, s in metrics.items() if name.startswith("timing_s/"))
        # Transfer and conversion to tensors: the call's time less that of the learner's phases.
        metrics["timing_s/handover"] = time.perf_counter() - start - learner_s
        if len(results) > 1:
            metrics |= merge_metrics(
                [{k: x for k, x in m.items() if k.startswith("memory/")} for m, _ in results]
            )
        return metrics, columns

    def weights(self) -> Any:
        """Returns a reference to the learner's weights: tensors go from process to process."""
        if len(self.ranks) > 1:
            self._together(actor.gather_weights.remote() for actor in self.ranks.values())
        return self.ranks[LEARNER].weights.remote()

    def sync_weights(self, policy_version: int = 0) -> None:
        """Gives every engine the learner's weights, in place, with the number of their updates."""
        self._waits.tell("sync")
        self.engines.release_weights()
        self.engines.set_weights(self.weights(), policy_version)
        self._note_digest(policy_version)

    def held_weights(self) -> list[tuple[str, int, str]]:
        """Returns which weights learner and engines had since the last call, see `receipt.py`."""
        held = [(LEARNER, n, self._result(LEARNER, one)) for n, one in self._digests.items()]
        self._digests.clear()
        return held + self.engines.held_weights()

    def _note_digest(self, policy_version: int, *, gathers: bool = False) -> None:
        """Asks the learner for the digest of its weights, which `held_weights` waits for."""
        if gathers and len(self.ranks) > 1:
            self._together(actor.gather_weights.remote() for actor in self.ranks.values())
        self._digests[policy_version] = self.ranks[LEARNER].digest.remote().future()

    def snapshot(self) -> int:
        """Makes the learner copy what a checkpoint holds, over the last snapshot."""
        return sum(self._together(actor.snapshot.remote() for actor in self.ranks.values()))

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot to an empty or new folder; the learner continues meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Future[Any]] = [
            actor.write_snapshot.remote(folder.resolve()).future() for actor in self.ranks.values()
        ]
        wait(written)  # also if one has failed: the others still write into the folder
        for name, part in zip(self.ranks, written, strict=True):
            self._result(name, part)

    def end_learner(self) -> None:
        """Ends the learner's processes, and what the engines generate for them."""
        self.engines.stop()
        for actor in self.ranks.values():
            ray.kill(actor)

    def _together(self, pending: Any) -> list[Any]:
        """Waits for references, one per rank in their order; raises as soon as a rank has failed.

        Ranks that wait for a failed one may never end. If it died, they raise RankLost before Ray
        reports its death: wait a little for that, so that the error names the cause.
        """
        futures = {ref.future(): name for ref, name in zip(pending, self.ranks, strict=True)}
        wait(futures, return_when=FIRST_EXCEPTION)
        errors = self._errors(futures)
        if errors and all(isinstance(error, RankLost) for error in errors):
            wait(futures, timeout=10.0)  # Ray says within some 2 s that a process is gone
            errors = self._errors(futures)
        if errors:
            # The cause first: OutOfMemory, then anything but RankLost, which is an effect.
            raise min(errors, key=lambda x: -isinstance(x, OutOfMemory) + isinstance(x, RankLost))
        return [self._result(name, future) for future, name in futures.items()]

    def _errors(self, futures: dict[Future[Any], str]) -> list[Exception]:
        errors = []
        for future, name in futures.items():
            if future.done() and future.exception() is not None:
                try:
                    self._result(name, future)
                except Exception as error:  # noqa: BLE001  # one of them is raised
                    errors.append(error)
        return errors

    def _spawn(self, name: str, actor: type) -> Any:
        resources = self._config.resources
        place = self._place.room.options(name)
        on_gpu = place["num_gpus"] > 0
        threads = resources.rollout_threads
        if actor is LearnerActor:
            # On a CPU, one process runs its own threads, a micro-batch each.
            of_torch = on_gpu or resources.learner_ranks > 1
            threads = resources.learner_threads if of_torch else 1
        environment = process_environment(
            num_threads=threads,
            on_gpu=on_gpu,
            sleeps=actor is RolloutActor and self._config.rollout.sleep,
        )
        remote = ray.remote(**place, max_restarts=0, concurrency_groups={WRITING: 1})(actor)
        return remote.remote(environment, self._place.logs / f"{name}.log")

    def _load(self, resume_from: Path | None, report: Callable[[str], None]) -> None:
        """Loads what is new, all models at the same time, except those that share a card."""
        if len(self.ranks) > 1:
            self._meet()
        starting = self.engines.actors | self.ranks if self._is_new else self.ranks
        queues = loading_queues(self._cards(starting))
        loading: dict[Future[Any], tuple[str, list[str]]] = {}

        def load_first(queue: list[str]) -> None:
            name, *rest = queue
            self._waits.begin(START, name, name)
            if name in self.ranks:
                loaded = self._load_actor(self.ranks[name], resume_from).future()
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
                self._waits.tell("load")
                self._waits.end(START, name)
                report(f"{name} is ready")
                if rest:
                    load_first(rest)

    def _meet(self) -> None:
        ranks = self.ranks.values()
        size = len(self.ranks)
        meeting = self._place.closed / uuid4().hex
        timeout_s = self._config.watchdog.stall_s  # how long a rank waits for another in a step
        hosts = self._together(
            actor.__ray_call__.remote(lambda _: ray.util.get_node_ip_address()) for actor in ranks
        )
        self._together(
            actor.meet.remote(rank, size, place=meeting, own_host=hosts[rank], timeout_s=timeout_s)
            for rank, actor in enumerate(ranks)
        )

    def _cards(self, actors: Mapping[str, Any]) -> dict[str, set[tuple[str, str]]]:
        """Returns which cards Ray has given to each process, as (machine, number on it)."""
        resources = self._config.resources
        if not (resources.learner_gpus or resources.rollout_gpus):
            return {name: set() for name in actors}
        calls = {name: actor.__ray_call__.remote(_own_cards) for name, actor in actors.items()}
        return {name: self._result(name, cards.future()) for name, cards in calls.items()}


def _is_adapter(checkpoint: Path | None) -> bool:
    return checkpoint is not None and adapter_in(checkpoint) is not None


@dataclass(frozen=True)
class Place:
    """Where a run's processes are: their room in Ray, and the folders that they share."""

    room: Reservation
    logs: Path
    closed: Path
    """Which no other user can enter."""


@contextmanager
def _session(
    config: RunConfig,
    model_path: Path,
    log_folder: Path | None,
    report: Callable[[str], None],
    *,
    learner: bool,
) -> Iterator[Place]:
    with (
        ray_session(config, model_path, log_folder, learner=learner) as temp_dir,
        _folder_of_logs(config, log_folder, temp_dir) as logs,
        _folder_of_ranks(config, logs, temp_dir) as closed,
    ):
        report("Ray is up")
        yield Place(Reservation(config, learner=learner, report=report), logs, closed)


@contextmanager
def _folder_of_logs(config: RunConfig, log_folder: Path | None, temp_dir: Path) -> Iterator[Path]:
    """Yields the folder asked for, else a temporary one, which all of Ray's machines see."""
    if log_folder is None and config.resources.ray_address is not None:
        root = config.storage.root.resolve()
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".workers-", dir=root, ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    folder = (log_folder or temp_dir).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


@contextmanager
def _folder_of_ranks(config: RunConfig, shared: Path, temp_dir: Path) -> Iterator[Path]:
    """Yields a folder that all of Ray's machines see, and that no other user can enter."""
    parent = temp_dir if config.resources.ray_address is None else shared
    with TemporaryDirectory(prefix=".ranks-", dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _own_cards(actor: object) -> set[tuple[str, str]]:
    context = ray.get_runtime_context()
    return {(context.get_node_id(), card) for card in context.get_accelerator_ids()["GPU"]}
