"""The rollout engines of a run, seen from the trainer loop (stage 3).

If an engine dies, only its work is lost: others answer its unfinished requests, and it is started
again meanwhile, or when Ray has room for it. Every sample has a seed of its own, so the responses
are the same as without the death.
"""

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.resources.placement import engine_name
from rl_core.resources.token_budgets import log_out_of_memory, merge_metrics
from rl_core.rollout.protocol import in_order
from rl_core.system.atomic import reading
from rl_core.types import Completion, GenerationRequest, SamplingSettings

_MOST_DEATHS: Final = 3
"""After so many deaths of one engine without a completed step in between, the attempt ends."""
_PORTIONS: Final = 16
"""Calls in which an engine hands over its completions: each costs about a millisecond."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class EngineProcess:
    """One process of an engine; a restart makes a new one."""

    name: str
    actor: Any
    """Ray's handle, whose calls run one after the other in the order in which they were made."""
    starting: list[Future[Any]] = field(default_factory=list)
    """Calls that load model and weights, until their success is known."""
    is_behind: bool = False
    """Others have newer weights, which it gets when it has loaded."""


class Engines:
    """The rollout engines of one run.

    `spawn` starts the process of an engine by its name, and `load` makes it load the model and
    weights (a folder or a reference; None: the model's own) with the number of their updates.
    Requests wait until engines on the learner's card (`beside_learner`) have started: they could
    not start while the learner works. Only `close` may be called while something is streamed.
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
        on_progress: Callable[[str], None],
        beside_learner: bool,
    ) -> None:
        self._spawn = spawn
        self._load = load
        self._result = result
        self._on_progress = on_progress
        self._beside_learner = beside_learner
        self._lock = threading.Lock()
        self._is_closed = False
        self._policy_version = policy_version
        # Ray keeps what is referred to: an engine that starts again gets what the others hold.
        self._weights: Any = weights
        self._died: list[str] = []
        self._deaths: Counter[str] = Counter()
        names = [engine_name(i) for i in range(number)]
        self._engines = {name: EngineProcess(name, spawn(name)) for name in names}

    @property
    def actors(self) -> dict[str, Any]:
        """Ray's handles by name."""
        return {name: engine.actor for name, engine in self._engines.items()}

    def begin_load(self, name: str) -> Future[Any]:
        """Starts to load an engine's model and weights; the future is done when they are loaded."""
        engine = self._engines[name]
        loading = self._load(engine.actor, self._weights, self._policy_version)
        loaded: Future[Any] = loading.future()
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
        unfinished responses are generated again, fewer at a time; if an engine dies, others answer
        its unfinished requests, or it does so itself when it has started again.

        Raises:
            OutOfMemory: not even one response fitted, or an engine was killed when memory ran out.
            WorkerDied: an engine died again and again.
        """
        self._on_progress("gen")
        unanswered: dict[int, EngineProcess] = {}
        calls: dict[Future[Any], tuple[EngineProcess, Sequence[int]]] = {}

        def ask(positions: Sequence[int]) -> list[str]:
            self._check_open()
            engines = self._takers()
            for engine, share in zip(engines, _shares(positions, len(engines)), strict=True):
                self._catch_up(engine)
                unanswered.update(dict.fromkeys(share, engine))
                taken = [requests[position] for position in share]
                begun = _begin(engine.actor, taken, sampling, phase)
                calls.update(dict.fromkeys(begun, (engine, share)))
            return [engine.name for engine in engines]

        def answer(engine: EngineProcess, call: Future[Any]) -> Sequence[tuple[int, Completion]]:
            self._check_open()
            try:
                return self._answer(engine, call) or ()
            except WorkerDied as death:
                self._replace(engine, death)
                if lost := [i for i, taker in unanswered.items() if taker is engine]:
                    others = ", ".join(ask(lost))
                    message = "%s died: its %d unfinished responses go to %s"
                    _logger.warning(message, engine.name, len(lost), others)
                return ()

        with self._lock:
            ask(range(len(requests)))
        while unanswered:
            assert calls, "engines have answered less than they were asked"
            for call in wait(calls, return_when=FIRST_COMPLETED).done:
                engine, share = calls.pop(call)
                self._on_progress("gen")
                with self._lock:
                    finished = answer(engine, call)
                for i, completion in finished:
                    if unanswered.pop(share[i], None) is not None:
                        yield share[i], completion

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request of an evaluation, in order, from all engines."""
        completions = in_order(self.stream(requests, sampling, "evaluate"))
        log_out_of_memory(None, self.end_step())
        return completions

    def end_step(self) -> dict[str, float]:
        """Returns metrics since the last call: `AdaptiveEngine`'s, and how often an engine died."""
        loaded = self._loaded()
        answers = self._ask_each(loaded, lambda actor: actor.end_step.remote())
        for engine in loaded:
            if engine.name not in self._died:
                del self._deaths[engine.name]
        num_deaths = len(self._died)
        self._died = []
        return merge_metrics(answers) | {"rollout/engine_restarts": num_deaths}

    def release_weights(self) -> None:
        """Frees the weights that `set_weights` replaces next: nothing is generated until then.

        They stay in Ray's store if an engine is starting, which may still need them.
        """
        self._ask_each(self._loaded(), lambda actor: actor.release_weights.remote())
        if len(self._loaded()) == len(self._engines):
            self._weights = None

    def set_weights(self, weights: Any, policy_version: int = 0) -> None:
        """Gives every engine new weights, in place; one that is starting takes them after that.

        They are a folder with a saved model of the same architecture, or Ray's reference to what
        `LearnerActor.weights` returns: tensors go from process to process, and not through this
        one. `policy_version` is how many updates made them: completions carry it.
        """
        loaded = self._loaded()
        self._weights = weights
        self._policy_version = policy_version
        for engine in self._engines.values():
            # Not now: the call would keep these weights in Ray as long as the engine has no room.
            engine.is_behind |= engine not in loaded
        self._ask_each(loaded, lambda actor: actor.set_weights.remote(weights, policy_version))

    def load_weights(self, folder: Path) -> None:
        """Gives every engine the weights of a saved model of the same architecture."""
        folder = folder.resolve()
        with reading(folder):
            self.set_weights(folder)

    def close(self) -> None:
        """Ends another thread's stream, so that it starts no engines when Ray is gone."""
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the run has ended: nothing is generated any more")

    def _ask_each(self, engines: Sequence[EngineProcess], ask: Callable[[Any], Any]) -> list[Any]:
        """Returns the answers of the engines that live, and starts dead ones again."""
        calls = [(engine, ask(engine.actor).future()) for engine in engines]
        answers = []
        for engine, call in calls:
            try:
                answers.append(self._answer(engine, call))
            except WorkerDied as death:
                self._replace(engine, death)
        return answers

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
            if all(call.done() for call in engine.starting):
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
                self._result(engine.name, engine.starting[0])
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

        def tell(loaded: Future[Any]) -> None:
            if loaded.exception() is None:
                took_s = time.monotonic() - since
                _logger.warning("%s has started again, in %.1f s", name, took_s)

        self.begin_load(name).add_done_callback(tell)


def _begin(
    actor: Any, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str
) -> list[Future[Any]]:
    """Makes all calls at once, so that the engine need not wait for the driver between them."""
    limit = -(-len(requests) // _PORTIONS) or 1
    calls = [actor.begin.remote(requests, sampling, phase)]
    calls += [actor.next_finished.remote(limit) for _ in range(0, len(requests), limit)]
    return [call.future() for call in calls]


def _shares(positions: Sequence[int], number: int) -> list[Sequence[int]]:
    """Returns `number` parts of about equal size, each of neighbours, which share prompts."""
    share, rest = divmod(len(positions), number)
    ends = itertools.accumulate(share + (i < rest) for i in range(number))
    return [positions[start:end] for start, end in itertools.pairwise((0, *ends))]
