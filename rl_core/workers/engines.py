"""The rollout engines of a run, seen from the trainer loop (stage 3).

If an engine dies, only its work is lost: others answer its unfinished requests, and it is started
again meanwhile, or when Ray has room for it. Every sample has a seed of its own, so the responses
are the same as without the death. An engine that lives but is silent for too long is ended, and
then it is one that died.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.resources.placement import engine_name
from rl_core.resources.token_budgets import log_out_of_memory, merge_metrics
from rl_core.rollout.protocol import in_order
from rl_core.system.atomic import reading
from rl_core.system.waits import START, Waits
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from rl_core.workers.engine_process import EngineProcess, Job, begin, shares

_MOST_DEATHS: Final = 3
"""After so many deaths of one engine without a completed step in between, the attempt ends."""
_MOST_MOVES: Final = 2
"""Hung engines that a request is taken from; the next one is left to the watchdog."""
_PATIENCE: Final = 10.0
"""An engine is hung if it is silent for so many times the longest silence seen so far."""
_LEAST_S: Final = 60.0
_LOOK_S: Final = 1.0
_logger = logging.getLogger(__name__)


class Engines:
    """The rollout engines of one run.

    `spawn` starts the process of an engine by its name, and `load` makes it load the model and
    weights (a folder or a reference; None: the model's own) with the number of their updates.
    Requests wait until engines on the learner's card (`beside_learner`) have started: they could
    not start while the learner works. Only `close` and `stop` may be called while something is
    streamed. `processes` of another object that was stopped are used instead of new ones.
    """

    def __init__(
        self,
        number: int,
        *,
        spawn: Callable[[str], Any],
        load: Callable[[Any, Any, int], Any],
        weights: Path | None,
        policy_version: int,
        result: Callable[[str, Future[Any]], Any],
        waits: Waits,
        stall_s: float,
        beside_learner: bool,
        processes: Sequence[EngineProcess] = (),
    ) -> None:
        self._spawn = spawn
        self._load = load
        self._result = result
        self._waits = waits
        self._beside_learner = beside_learner
        self._stall_s = stall_s
        self._silences: dict[tuple[str, str], float] = {}
        """The longest by engine, whose machine may be a slow one, and phase."""
        self._hung = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._policy_version = policy_version
        # Ray keeps what is referred to: an engine that starts again gets what the others hold.
        self._weights: Any = weights
        self._held: dict[tuple[str, int], str] = {}
        """By name and version, the digest of what an engine took last."""
        self._died: list[str] = []
        self._deaths: Counter[str] = Counter()
        names = [] if processes else map(engine_name, range(number))
        started = [*processes, *(EngineProcess(name, spawn(name)) for name in names)]
        self._engines = {engine.name: engine for engine in started}

    @property
    def actors(self) -> dict[str, Any]:
        """Ray's handles by name."""
        return {name: engine.actor for name, engine in self._engines.items()}

    @property
    def processes(self) -> list[EngineProcess]:
        """The engines' processes; with old weights, until `set_weights`, for another object."""
        return [*self._engines.values()]

    def begin_load(self, name: str) -> Future[Any]:
        """Starts to load an engine's model and weights; the future is done when they are loaded."""
        engine = self._engines[name]
        loaded: Future[Any] = self._load(engine.actor, self._weights, self._policy_version).future()
        engine.starting = [loaded]
        return loaded

    def start_again(self, name: str, death: WorkerDied) -> Future[Any]:
        """Replaces a process that died while it loaded; raises its death if it is no engine."""
        if name not in self._engines:
            raise death
        self._replace(self._engines[name], death)
        return self._engines[name].starting[0]

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str = "gen"
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions of all engines with their requests' positions, soon after each ended.

        They come in no fixed order, a sixteenth of an engine's share at a time. If memory runs out,
        unfinished responses are generated again, fewer at a time; if an engine dies or hangs,
        others answer its unfinished requests, or it does so itself when it has started again.

        Raises:
            OutOfMemory: not even one response fitted, or an engine was killed when memory ran out.
            WorkerDied: an engine died again and again.
        """
        job = Job(requests, sampling, phase)
        self._waits.tell("gen")
        try:
            with self._lock:
                self._ask(job, range(len(requests)))
            while job.unanswered:
                assert job.calls, "engines have answered less than they were asked"
                for call in wait(job.calls, _LOOK_S, FIRST_COMPLETED).done:
                    engine, share = job.calls.pop(call)
                    self._waits.tell("gen")
                    with self._lock:
                        finished = self._take(job, engine, call)
                    for i, completion in finished:
                        if job.unanswered.pop(share[i], None) is not None:
                            self._waits.end(phase, share[i])
                            yield share[i], completion
                self._end_hung(job)
        finally:
            for position in job.unanswered:
                self._waits.end(phase, position)

    def _ask(self, job: Job, positions: Sequence[int]) -> list[str]:
        """Gives engines requests of a stream, and returns their names."""
        self._check_open()
        engines = self._takers()
        for engine, share in zip(engines, shares(positions, len(engines)), strict=True):
            self._catch_up(engine)
            engine.moved_at = time.monotonic()
            job.unanswered.update(dict.fromkeys(share, engine))
            requests = [job.requests[position] for position in share]
            for position, request in zip(share, requests, strict=True):
                what = "request" if request.problem is None else f"problem {request.problem}"
                self._waits.begin(job.phase, position, what, engine.name)
            begun = begin(engine.actor, requests, job.sampling, job.phase)
            job.calls.update(dict.fromkeys(begun, (engine, share)))
        return [engine.name for engine in engines]

    def _take(
        self, job: Job, engine: EngineProcess, call: Future[Any]
    ) -> Sequence[tuple[int, Completion]]:
        """Returns what a call brought; if its engine died, others get what it left."""
        self._check_open()
        try:
            finished = self._answer(engine, call) or ()
        except WorkerDied as death:
            self._replace(engine, death)
            if lost := job.held_by(engine):
                others = ", ".join(self._ask(job, lost))
                message = "%s died: its %d unfinished responses go to %s"
                _logger.warning(message, engine.name, len(lost), others)
            return ()
        if finished:
            self._note_answer(engine, job.phase)
        return finished

    def _end_hung(self, job: Job) -> None:
        """Ends the engines of a stream that hang, unless their requests hung elsewhere before."""
        for engine in job.silent():
            if engine.is_starting():
                engine.moved_at = time.monotonic()
            held = job.held_by(engine)
            may_move = max((job.moves[i] for i in held), default=0) < _MOST_MOVES
            if may_move and self._end_if_hung(engine, job.phase):
                job.moves.update(held)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request of an evaluation, in order, from all engines."""
        completions = in_order(self.stream(requests, sampling, "evaluate"))
        log_out_of_memory(None, self.end_step())
        return completions

    def end_step(self) -> dict[str, float]:
        """Returns metrics since the last call: `AdaptiveEngine`'s, and how often an engine died.

        `rollout/engine_hangs`, if there were any: how many of these were ended because they hung.
        """
        loaded = self._loaded()
        answers = self._ask_each(loaded, "end_step")
        for engine in loaded:
            if engine.name not in self._died:
                del self._deaths[engine.name]
        num_deaths = len(self._died)
        hung = {"rollout/engine_hangs": self._hung} if self._hung else {}
        self._died = []
        self._hung = 0
        return (
            merge_metrics(list(answers.values())) | {"rollout/engine_restarts": num_deaths} | hung
        )

    def release_weights(self) -> None:
        """Frees the weights that `set_weights` replaces next: nothing is generated until then.

        They stay in Ray's store if an engine is starting, which may still need them.
        """
        self._ask_each(self._loaded(), "release_weights")
        if len(self._loaded()) == len(self._engines):
            self._weights = None

    def set_weights(self, weights: Any, policy_version: int = 0) -> None:
        """Gives every engine new weights, in place; one that is starting takes them after that.

        They are a saved model's folder, or Ray's reference to what `LearnerActor.weights` returns:
        tensors go from process to process. `policy_version` counts their updates.
        """
        loaded = self._loaded()
        self._weights = weights
        self._policy_version = policy_version
        for engine in self._engines.values():
            # Not now: the call would keep these weights in Ray as long as the engine has no room.
            engine.is_behind |= engine not in loaded
        for name, held in self._ask_each(loaded, "set_weights", weights, policy_version).items():
            self._held[name, held[0]] = held[1]

    def held_weights(self) -> list[tuple[str, int, str]]:
        """Returns which weights each engine took since the last call: name, version and digest."""
        held = [(name, version, digest) for (name, version), digest in self._held.items()]
        self._held.clear()
        return held

    def load_weights(self, folder: Path) -> None:
        """Gives every engine the weights of a saved model of the same architecture."""
        with reading(folder):
            self.set_weights(folder.resolve())

    def close(self) -> None:
        """Ends another thread's stream, so that it starts no engines when Ray is gone."""
        with self._lock:
            self._is_closed = True

    def stop(self) -> None:
        """Ends all streams; the processes generate no more, until others ask them."""
        self.close()
        for engine in self._engines.values():
            engine.actor.stop_generating.remote()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the run has ended: nothing is generated any more")

    def _ask_each(
        self, engines: Sequence[EngineProcess], method: str, *arguments: object
    ) -> dict[str, Any]:
        """Returns the answers of the engines that live, and starts dead and hung ones again."""
        calls: dict[Future[Any], EngineProcess] = {}
        for engine in engines:
            engine.moved_at = time.monotonic()
            self._waits.begin("sync", engine, method, engine.name)
            calls[getattr(engine.actor, method).remote(*arguments).future()] = engine
        pending = dict(calls)
        while pending:
            for call in wait(pending, _LOOK_S, FIRST_COMPLETED).done:
                engine = pending.pop(call)
                self._waits.end("sync", engine)
                if call.exception() is None:
                    self._note_answer(engine, method)
            for engine in pending.values():
                self._end_if_hung(engine, method)
        answers = {}
        for call, engine in calls.items():
            try:
                answers[engine.name] = self._answer(engine, call)
            except WorkerDied as death:
                self._replace(engine, death)
        return answers

    def _note_answer(self, engine: EngineProcess, phase: str) -> None:
        now = time.monotonic()
        key = engine.name, phase
        self._silences[key] = max(self._silences.get(key, 0.0), now - engine.moved_at)
        engine.moved_at = now

    def _end_if_hung(self, engine: EngineProcess, phase: str) -> bool:
        """Ends a process that has been silent for too long, and says whether it did.

        Too long is `_PATIENCE` times its longest silence in the phase so far, `_LEAST_S` at least,
        half of `watchdog.stall_s` at most and before there is a measured one.
        """
        limit_s = self._stall_s / 2
        if (longest_s := self._silences.get((engine.name, phase))) is not None:
            limit_s = min(max(_PATIENCE * longest_s, _LEAST_S), limit_s)
        now = time.monotonic()
        silent_s = now - engine.moved_at
        if silent_s < limit_s:
            return False
        engine.moved_at = now
        self._hung += 1
        self._waits.tell("gen")
        _logger.warning(
            "%s lives but has not answered in %s for %.0f s: it counts as dead",
            engine.name,
            phase,
            silent_s,
        )
        ray.kill(engine.actor)
        return True

    def _takers(self) -> list[EngineProcess]:
        """Returns the engines to ask: those that have loaded; waits until there is one.

        On the learner's card it returns all engines: they load before they answer.
        """
        loaded = self._loaded()
        if self._beside_learner:
            return list(self._engines.values())
        while not loaded:
            starting = [call for engine in self._engines.values() for call in engine.starting]
            wait([call for call in starting if not call.done()], return_when=FIRST_COMPLETED)
            loaded = self._loaded()
        return loaded

    def _loaded(self) -> list[EngineProcess]:
        """Returns the engines that have started and have the current weights."""
        for engine in list(self._engines.values()):
            if not engine.is_starting():
                try:
                    self._finish_start(engine)
                    self._catch_up(engine)
                except WorkerDied as death:
                    self._replace(engine, death)
        return [engine for engine in self._engines.values() if not engine.starting]

    def _catch_up(self, engine: EngineProcess) -> None:
        """Sends an engine, before any request, the weights that came while it started."""
        if engine.is_behind:
            engine.is_behind = False
            call = engine.actor.set_weights.remote(self._weights, self._policy_version)
            engine.starting.append(call.future())

    def _answer(self, engine: EngineProcess, call: Future[Any]) -> Any:
        """Waits for the result of a call, and before that for the calls that start the engine."""
        self._finish_start(engine)
        return self._result(engine.name, call)

    def _finish_start(self, engine: EngineProcess) -> None:
        while engine.starting:
            try:
                version, digest = self._result(engine.name, engine.starting[0])
                self._held[engine.name, version] = digest
            except OutOfMemory as error:
                if error.phase != "load_engine":
                    raise
                # It had fitted before: another attempt, in which all load in turn, may succeed.
                raise WorkerDied(engine.name, f"it did not start again: {error}") from error
            engine.starting.pop(0)

    def _replace(self, engine: EngineProcess, death: WorkerDied) -> None:
        """Starts a new process, with current weights, in place of a dead one; does so only once.

        WorkerDied if it was not this process that died, or it has died too often.
        """
        name = engine.name
        if self._engines[name] is not engine:
            return
        if death.worker != name or not isinstance(death.__cause__, RayActorError):
            raise death
        self._died.append(name)
        self._deaths[name] += 1
        if self._deaths[name] == _MOST_DEATHS:
            often = f"{_MOST_DEATHS} times without coming through a step; {death.detail}"
            raise WorkerDied(name, often) from death
        _logger.warning("%s; it is started again", death)
        ray.kill(engine.actor)  # it may only be out of reach
        self._engines[name] = EngineProcess(name, self._spawn(name))
        since = time.monotonic()
        self._waits.begin(START, name, name)

        def tell(loaded: Future[Any]) -> None:
            self._waits.end(START, name)
            if loaded.exception() is None:
                _logger.warning("%s has started again, in %.1f s", name, time.monotonic() - since)

        self.begin_load(name).add_done_callback(tell)
