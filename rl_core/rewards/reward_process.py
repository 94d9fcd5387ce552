"""The processes with a user's code (stage 4): started, asked, timed, killed and replaced."""

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import Any, Final

from rl_core.config.rollout import RewardConfig
from rl_core.system.child_process import Child, how_it_ended
from rl_core.system.process_env import credentials_for

_START_TIMEOUT_S: Final = 120.0
"""A user's module may import much; the limits per response apply only after that."""


class RewardFailed(Exception):  # noqa: N818  # it is no error of ours
    """Why a user's function gave no reward."""


class LostWithOthers(RewardFailed):
    """The process ended, with other calls in it: any of them may be the cause."""


class RewardProcess(Child):
    """One process with the user's function; killed once anything went wrong with it."""

    def __init__(self, name: str, limits: RewardConfig) -> None:
        """Starts it and waits until the function is loaded; RewardFailed if it cannot be."""
        super().__init__(
            "rl_core.rewards.reward_worker",
            limits.memory_mib,
            os.getpid(),
            environment=credentials_for(names=limits.env),
        )
        self._numbers = count()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._why = ""
        self._lost: set[int] = set()
        try:
            self.send({"function": name, "timeout_s": limits.timeout_s}, _START_TIMEOUT_S)
            reply = self.receive(_START_TIMEOUT_S)
        except (OSError, EOFError, ValueError) as error:
            self._end(error, _START_TIMEOUT_S)
            raise RewardFailed(self._why) from None
        if "error" in reply:
            self.close()
            raise RewardFailed(reply["error"])
        self.is_async: bool = reply["is_async"]
        # An async call ends by itself, unless another one keeps the process from awaiting.
        self._limit_s = limits.timeout_s * (2 if self.is_async else 1)
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns what the function gave; RewardFailed if that is no reward, or comes too late."""
        number = next(self._numbers)
        reply = self._pending[number] = Future()
        try:
            self.send(question | {"id": number}, self._limit_s)
            result = reply.result(self._limit_s)
        except (OSError, EOFError, ValueError, LookupError) as error:
            self._end(error, self._limit_s)
            kind = RewardFailed if self._lost == {number} else LostWithOthers
            raise kind(self._why) from None
        finally:
            self._pending.pop(number, None)
        if "error" in result:
            raise RewardFailed(result["error"])
        return result

    def _listen(self) -> None:
        """Hands each reply to the thread that waits for it, until the process ends."""
        try:
            while True:
                with suppress(TimeoutError):
                    reply = self.receive(self._limit_s)
                    self._pending[reply.pop("id")].set_result(reply)
        except (OSError, EOFError, ValueError, LookupError) as error:
            self._end(error, self._limit_s)

    def _end(self, error: Exception, timeout_s: float) -> None:
        """Kills the process, notes what happened to it, and fails all calls in it."""
        with self._lock:
            if self._why:
                return
            self._why = f"no answer within {timeout_s:g} s"
            if not isinstance(error, TimeoutError):
                self._why = f"its answer could not be read ({type(error).__name__})"
                with suppress(subprocess.TimeoutExpired):
                    code = self.process.wait(timeout=1.0)
                    self._why = f"its process died: {how_it_ended(code)}"
            self.close()
            self._lost = set(self._pending)
            for reply in list(self._pending.values()):
                if not reply.done():
                    reply.set_exception(EOFError())


class Seat:
    """The place of a process, which is started when it is needed."""

    def __init__(
        self, start: Callable[[], RewardProcess], process: RewardProcess | None = None
    ) -> None:
        self._start = start
        self._process = process
        self._lock = threading.Lock()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the reply of the process, a new one if the last one is gone."""
        with self._lock:
            if self._process is None or self._process.process.poll() is not None:
                self._process = self._start()
            process = self._process
        return process.ask(question)


class Seats:
    """Seats, each with one call at a time; several may be the same seat."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._free: SimpleQueue[Seat] = SimpleQueue()
        for seat in seats:
            self._free.put(seat)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the reply of a free seat, as soon as there is one; see `RewardProcess.ask`."""
        seat = self._free.get()
        try:
            return seat.ask(question)
        finally:
            self._free.put(seat)


class Processes:
    """The processes with one function or class of the user's."""

    def __init__(self, name: str, limits: RewardConfig) -> None:
        self._name = name
        self._limits = limits
        self._started: set[RewardProcess] = set()
        self._lock = threading.Lock()
        self.is_closing = False

    def start(self) -> RewardProcess:
        """Returns a new one; RewardFailed if the function cannot be loaded, or the run ends."""
        if self.is_closing:
            raise RewardFailed("the run ends")
        fresh = RewardProcess(self._name, self._limits)
        with self._lock:
            ended = {process for process in self._started if process.process.poll() is not None}
            self._started = self._started - ended | {fresh}
            if self.is_closing:
                fresh.kill()
        for process in ended:  # dead, but what it started may live
            process.close()
        return fresh

    def close(self, pools: Sequence[ThreadPoolExecutor]) -> None:
        """Kills all, and ends the pools whose threads ask them; what still waits is not done."""
        with self._lock:
            self.is_closing = True
            for process in self._started:
                process.kill()
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        for process in self._started:
            process.close()
