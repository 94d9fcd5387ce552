"""Scores in a process of its own, as a run does, and measures that (stage 4, `reward probe`).

The process calls `start_rewards`, so a user's function has its own processes and limits below it.
An env's own rule has no limits in a run; here it is killed when it takes longer than a function of
the user's may, so a probe ends.
"""

import os
import resource
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from rl_core.config.run import RunConfig
from rl_core.rewards.reward_worker import describe
from rl_core.rewards.scoring import Rewards, start_rewards
from rl_core.system.child_process import Child, channel_to_parent, how_it_ended
from rl_core.system.sealed import die_with
from rl_core.types import REWARD_ERROR, Problem, ScoredText

_START_S: Final = 180.0
"""A user's module may import much, and its processes start one after another."""


@dataclass(frozen=True)
class Measured:
    """The score of one response, and what the call took."""

    scored: ScoredText
    seconds: float = 0.0
    num_threads: int = 0
    """Of the processes with the user's code, or of the one that scores by the env's rule."""
    num_bytes: int = 0
    """Memory of the same processes."""


class ScoringProcess:
    """Scores one response at a time; a process that died or hung is replaced."""

    def __init__(self, config: RunConfig, *, hash_seed: int) -> None:
        """Starts it; ValueError if the reward cannot be loaded."""
        self._config = config
        self._hash_seed = str(hash_seed)
        limit_s = config.reward.timeout_s
        # A function's own limits act first: an async one is asked twice, for twice the limit each.
        self._limit_s = _START_S + 4 * limit_s if config.env.reward else limit_s
        self._child = self._started()

    def ask(self, response: str, problem: Problem) -> Measured:
        """Returns the score; a rule that raises, hangs or dies is a `reward_error`."""
        if self._child.process.poll() is not None:
            self._child = self._started()
        child = self._child
        try:
            child.send({"response": response, "problem": asdict(problem)}, self._limit_s)
            reply = child.receive(self._limit_s)
        except TimeoutError:
            child.close()
            return _failed(f"no answer within {self._limit_s:g} s: a run would wait without limit")
        except (OSError, EOFError, ValueError):
            child.kill()
            child.close()
            return _failed(f"its process died: {how_it_ended(child.process.returncode)}")
        if "error" in reply:
            return _failed(f"{reply['error']}: a run would end")
        return Measured(ScoredText(**reply.pop("scored")), **reply)

    def close(self) -> None:
        """Kills it and all that it started."""
        self._child.close()

    def _started(self) -> Child:
        child = Child(
            "rl_core.rewards.scoring_process",
            os.getpid(),
            environment={"PYTHONHASHSEED": self._hash_seed},
        )
        try:
            child.send({"config": self._config.model_dump(mode="json")}, _START_S)
            reply = child.receive(_START_S + self._config.reward.timeout_s)
        except (OSError, EOFError, ValueError) as error:
            child.close()
            raise ValueError(f"the reward cannot be loaded: {describe(error)}") from None
        if "error" in reply:
            child.close()
            raise ValueError(reply["error"])
        return child


def _failed(why: str) -> Measured:
    return Measured(ScoredText(0.0, REWARD_ERROR, None, why=why))


def main() -> None:
    """Serves until the channel closes; argument: the parent's pid."""
    channel = channel_to_parent()
    die_with(int(sys.argv[1]))
    try:
        config = RunConfig.model_validate(channel.receive()["config"])
        with start_rewards(config.env, config.reward) as scorer:
            if not config.env.reward:
                _, most = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (config.reward.memory_mib * 2**20, most))
            channel.send({})
            while True:
                channel.send(_answer(scorer, channel.receive()))
    except EOFError:
        return
    except ValueError as error:
        channel.send({"error": str(error)})


def _answer(scorer: Rewards, message: dict[str, Any]) -> dict[str, Any]:
    fields = message["problem"]
    problem = Problem(**fields | {"messages": tuple(fields["messages"])})
    start = time.perf_counter()
    try:
        scored = scorer.submit(message["response"], problem).result()
    except BaseException as error:  # noqa: BLE001  # of an env's own rule, which may do anything
        return {"error": describe(error)}
    seconds = time.perf_counter() - start
    this_process = psutil.Process()
    num_threads = num_bytes = 0
    for process in this_process.children(recursive=True) or [this_process]:
        with suppress(psutil.Error):  # it ended meanwhile
            num_threads += process.num_threads()
            num_bytes += process.memory_info().rss
    return asdict(Measured(scored, seconds, num_threads, num_bytes))


if __name__ == "__main__":
    main()
