"""Scores responses as they come in (stage 4): the env's own rule, or a user's function.

The env's own rule runs in the calling thread: it takes microseconds, bounded for any text, a tenth
of the time to send the text to another process. A user's function may do anything, so it runs in
separate processes, with limits, and not in the calling thread.

`env.reward=package.module:function` names a function, which gets what its parameters name:

    def score(response, answer):
        return float(response.strip() == answer)

verl's names (`solution_str`, `ground_truth`, `extra_info`) and TRL's work too, see `by_name.py`.
`extra_info` has the problem's `index` and `num_solutions` with the row's own `extra_info` over
them. It returns a number, or a mapping with `score` and, optionally, `acc` (is it correct?) and
`pred` (the answer it read; None if there is none: the verdict is then `no_answer`).

The score of several, `env.reward=[a:f, b:g]`, is their sum, weighted by `env.reward_weights`.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Final

from rl_core.config.rollout import RewardConfig
from rl_core.envs.text_env import TextEnv
from rl_core.envs.tool_env import ToolEnv
from rl_core.rewards.by_name import caller_of
from rl_core.rewards.reward_process import (
    LostWithOthers,
    Processes,
    RewardFailed,
    RewardProcess,
    Seat,
    Seats,
)
from rl_core.rewards.reward_worker import checked
from rl_core.rewards.tools import Toolbox, question_of
from rl_core.system.waits import Waits
from rl_core.types import REWARD_ERROR, Problem, ScoredText, Turn

NO_ANSWER: Final = "no_answer"
"""A user's function reports it by a `pred` of None or blank text."""
INCORRECT: Final = "incorrect"
"""A user's function did not find it correct; the row does not say whether it could be read."""
_TRIAL: Final = "<think>a trial</think>\n<answer>42</answer>"
_REASONS_TOLD: Final = 3
_MOST_ALONE: Final = 8
"""Processes for calls that are asked again alone."""
_LIMITS: Final = RewardConfig()
_logger = logging.getLogger(__name__)


class Rewards:
    """Scores responses by the env's own rule."""

    toolbox: Toolbox | None = None
    """What calls the env's tools during the response."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env
        self._failures = count(1)
        self._closing = False

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        """Returns a future of the score, without waiting for it; `turns` as in `Completion`."""
        scored: Future[ScoredText] = Future()
        scored.set_result(self._env.score(response, problem.ground_truth))
        return scored

    def _failed(self, name: str, problem: Problem, error: Exception) -> ScoredText:
        """Returns the verdict of a response without a reward; the log has the first reasons."""
        number = next(self._failures)  # in one step, whichever thread takes it
        if number <= _REASONS_TOLD and not self._closing:
            last = "; later failures are not logged" if number == _REASONS_TOLD else ""
            _logger.warning(
                "%s gave no reward for a response to problem %d, which teaches nothing: %s%s",
                name,
                problem.index,
                error,
                last,
            )
        return ScoredText(0.0, REWARD_ERROR, None, why=str(error))


class NotedRewards(Rewards):
    """Another scorer's scores; `waits` has the calls that are not done."""

    def __init__(self, rewards: Rewards, waits: Waits) -> None:
        self._rewards = rewards
        self._waits = waits
        self.toolbox = rewards.toolbox

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        """Returns the other's future."""
        key = object()
        self._waits.begin("reward", key, f"problem {problem.index}")
        scored = self._rewards.submit(response, problem, turns)
        scored.add_done_callback(lambda _: self._waits.end("reward", key))
        return scored


@contextmanager
def start_rewards(env: TextEnv, limits: RewardConfig = _LIMITS) -> Iterator[Rewards]:
    """Yields the scorer of the env's responses; ValueError if `env.reward` names no function."""
    with ExitStack() as stack:
        rewards = Rewards(env)
        toolbox = None
        if isinstance(env, ToolEnv):
            toolbox = stack.enter_context(closing(Toolbox(env, limits)))
            if hasattr(env.tools, "reward"):
                rewards = _ToolRewards(env, toolbox)
        if env.reward:
            pool = stack.enter_context(ThreadPoolExecutor(1, "rewards"))
            scorers = [
                stack.enter_context(closing(_UserRewards(env, name, limits))) for name in env.reward
            ]
            is_plain = len(scorers) == 1 and not env.reward_weights
            rewards = scorers[0] if is_plain else _WeightedRewards(env, scorers, pool)
        rewards.toolbox = toolbox
        yield rewards


def refusal(
    env: TextEnv, tried_on: Sequence[Problem] = (), *, limits: RewardConfig = _LIMITS
) -> str | None:
    """Returns why `env.reward` cannot be used; None if it can, or if none is set.

    It is tried on a response to each problem of `tried_on`; at least one must get a score.
    """
    if isinstance(env, ToolEnv):
        try:
            Toolbox(env, limits).close()
        except ValueError as error:
            return str(error)
    return next(filter(None, (_refusal(name, tried_on, limits) for name in env.reward)), None)


def _refusal(name: str, tried_on: Sequence[Problem], limits: RewardConfig) -> str | None:
    try:
        process = RewardProcess(name, limits)
    except RewardFailed as error:
        return f"env.reward={name} cannot be loaded ({error})"
    why_not: str | None = None
    for problem in tried_on:
        try:
            process.ask(question_of(_TRIAL, problem))
            why_not = None
        except RewardFailed as error:
            why_not = str(error)
        if why_not is None or process.process.poll() is not None:
            break
    process.close()
    if why_not is None:
        return None
    return (
        f"env.reward={name} gives no score: to the first problems and the response "
        f"{_TRIAL!r} it says {why_not}"
    )


def _scored(result: Mapping[str, Any], env: TextEnv) -> ScoredText:
    """Returns what a user's function returned, as a score with its verdict."""
    is_correct = result.get("acc", result["score"] >= env.full_score)
    verdict = "correct" if is_correct else INCORRECT if result.get("pred", True) else NO_ANSWER
    answer = result.get("pred")
    return ScoredText(result["score"], verdict, answer=answer, value=answer)


class _ToolRewards(Rewards):
    """Scores by the method `reward` of a class of tools, on the object that the response used."""

    def __init__(self, env: TextEnv, toolbox: Toolbox) -> None:
        super().__init__(env)
        self._toolbox = toolbox
        self._pool = ThreadPoolExecutor(1, "rewards")

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        return self._pool.submit(
            self._read, self._toolbox.submit_reward(response, turns, problem), problem
        )

    def _read(self, pending: Future[dict[str, Any]], problem: Problem) -> ScoredText:
        try:
            return _scored(pending.result(), self._env)
        except RewardFailed as error:
            return self._failed(self._env.name, problem, error)


class CalledRewards(Rewards):
    """Scores by a function of this process, for `rl_core.train`: without limits of time.

    A function that raises ends the run, as in any program.
    """

    def __init__(
        self, env: TextEnv, function: Callable[..., Any], limits: RewardConfig = _LIMITS
    ) -> None:
        super().__init__(env)
        if isinstance(env, ToolEnv):
            raise ValueError(f"env={env.name} has tools: name its reward as module:function")
        self._call = caller_of(function)
        self._free = asyncio.Semaphore(limits.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        if inspect.iscoroutinefunction(self._call):
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        """Returns a future that is done, unless the function is an `async def`."""
        question = question_of(response, problem)
        if self._loop is not None:
            return asyncio.run_coroutine_threadsafe(self._await(question), self._loop)
        scored: Future[ScoredText] = Future()
        scored.set_result(_scored(checked(self._call(question)), self._env))
        return scored

    async def _await(self, question: dict[str, Any]) -> ScoredText:
        async with self._free:
            return _scored(checked(await self._call(question)), self._env)


class _WeightedRewards(Rewards):
    """Adds up several functions, each in its own processes; the first says what is correct."""

    def __init__(self, env: TextEnv, scorers: Sequence[Rewards], pool: ThreadPoolExecutor) -> None:
        super().__init__(env)
        self._scorers = scorers
        self._pool = pool
        self._weights = env.reward_weights or (1.0,) * len(scorers)
        self._names = _labels(env.reward)

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        return self._pool.submit(
            self._add_up, [scorer.submit(response, problem) for scorer in self._scorers]
        )

    def _add_up(self, pending: Sequence[Future[ScoredText]]) -> ScoredText:
        parts = [part.result() for part in pending]
        if failed := next((part for part in parts if part.verdict == REWARD_ERROR), None):
            return failed
        scores = [part.score for part in parts]
        return replace(
            parts[0],
            score=sum(w * s for w, s in zip(self._weights, scores, strict=True)),
            rewards=tuple(zip(self._names, scores, strict=True)),
        )


def _labels(names: Sequence[str]) -> list[str]:
    """Returns the functions' names in metrics, with their modules only if two are alike."""
    short = dict.fromkeys(name.partition(":")[2] for name in names)
    return list(short) if len(short) == len(names) else [name.replace(":", ".") for name in names]


class _UserRewards(Rewards):
    """Threads that ask the processes with the user's function, and replace those that died.

    A function has `reward.workers` processes, each with one call at a time; an `async def` one
    process with `reward.concurrency` calls. When that dies or hangs, any of these may be the cause:
    they are asked again, each alone in a process.
    """

    def __init__(self, env: TextEnv, name: str, limits: RewardConfig) -> None:
        super().__init__(env)
        self._name = name
        self._processes = Processes(name, limits)
        try:
            first = self._processes.start()
        except RewardFailed as error:
            raise ValueError(f"env.reward={name} cannot be loaded ({error})") from None
        shared = Seat(self._processes.start, first)
        others = [Seat(self._processes.start) for _ in range(limits.workers - 1)]
        seats = [shared] * limits.concurrency if first.is_async else [shared, *others]
        self._seats = Seats(seats)
        self._seats_alone = Seats([Seat(self._processes.start) for _ in range(_MOST_ALONE)])
        # A process dies with the thread that started it: threads must live as long as the run.
        self._pool = ThreadPoolExecutor(len(seats), "reward")

    def submit(
        self, response: str, problem: Problem, turns: Sequence[Turn] = ()
    ) -> Future[ScoredText]:
        return self._pool.submit(self._score, response, problem)

    def close(self) -> None:
        """Kills all processes; responses that still wait are not scored."""
        self._closing = True
        self._processes.close([self._pool])

    def _score(self, response: str, problem: Problem) -> ScoredText:
        question = question_of(response, problem)
        try:
            try:
                reply = self._seats.ask(question)
            except LostWithOthers:
                reply = self._seats_alone.ask(question)
        except RewardFailed as error:
            return self._failed(self._name, problem, error)
        return _scored(reply, self._env)
