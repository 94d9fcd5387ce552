"""A person is the policy: reads a prompt, writes a response, and sees what it is worth.

The env, its replies, its tools and its reward are those of a run; only the engine is the person,
and a token is a character.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder, problems_in, read_problems
from rl_core.data.user_files import first_own_problems
from rl_core.envs.text_env import TextEnv
from rl_core.envs.tool_env import HERMES, ToolEnv, calls_in, methods_of
from rl_core.rewards.scoring import start_rewards
from rl_core.rollout.turns import TurnTaking, within_bounds
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings, ScoredText
from tasks.preflight_checks.rows import made_problems

_NUM_PROBLEMS: Final = 16
_LONGEST: Final = 1_000_000


def _problems(config: RunConfig) -> list[Problem]:
    """Returns test problems of the settings' data set, or a few that are made for it."""
    folder = dataset_folder(config)
    if (folder / "test.parquet").is_file():
        return read_problems(folder / "test.parquet")
    if config.data.train_files:
        return first_own_problems(config.env, config.data, _NUM_PROBLEMS)
    return problems_in(made_problems(config, count=_NUM_PROBLEMS)["test"], config.env.name)


def play(
    config: RunConfig, show: Callable[[str], None], read: Callable[[], str | None]
) -> Iterator[tuple[ScoredText, float]]:
    """Yields each response's score, and its reward with that of its turns, until `read` has none.

    `show` gets the prompts and the env's replies; `read` returns a turn of the person.
    """
    person = _Person(show, read)
    show(_about_tools(config.env))
    with start_rewards(config.env, config.reward) as rewards:
        taking = TurnTaking(config.env, _decode, _encode, rewards.toolbox, _PlainForm())
        for problem in _problems(config):
            prompt = "\n".join(message["content"] for message in problem.messages)
            request = GenerationRequest(tuple(_encode(prompt)), seed=0)
            person.seen = 0
            played = list(taking.play(person, [request], SamplingSettings(_LONGEST), [problem]))
            if person.is_gone:
                return
            completion = played[0][1]
            text = _decode(completion.response_ids.tolist())
            scored = rewards.submit(text, problem, completion.turns).result()
            turns = within_bounds(completion.turns, scored.score, full_score=config.env.full_score)
            yield scored, scored.score + sum(turn.reward for turn in turns)


@dataclass
class _Person:
    """Answers as an engine does."""

    show: Callable[[str], None]
    read: Callable[[], str | None]
    seen: int = 0
    is_gone: bool = False

    def __call__(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[tuple[int, Completion]]:
        text = _decode(requests[0].prompt_ids)
        self.show(text[self.seen :].strip("\n"))
        response = self.read()
        self.is_gone = response is None
        ids = np.array(_encode(response or ""), dtype=np.int64)
        self.seen = len(text) + len(ids)
        logprobs = np.zeros(len(ids), dtype=np.float32)
        return [(0, Completion(ids, logprobs, "length" if self.is_gone else "stop"))]


class _PlainForm:
    def calls_in(self, ids: Sequence[int], /) -> list[str]:
        return calls_in(_decode(ids))

    def reply(self, replies: Sequence[str], /) -> str:
        return "".join(f"\n[tool] {reply}\n" for reply in replies)


def _about_tools(env: TextEnv) -> str:
    if not isinstance(env, ToolEnv):
        return ""
    lines = [
        f"{method.__name__}{inspect.signature(method)}: {str(method.__doc__).splitlines()[0]}"
        for method in methods_of(env.tools)
    ]
    example = '{"name": "TOOL", "arguments": {"NAME": VALUE}}'
    return "\n".join(["Tools:", *lines, f"You call one by {example.join(HERMES)}"])


def _encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def _decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))
