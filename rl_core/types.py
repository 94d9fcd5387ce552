"""The vocabulary of the data path: what each stage hands to the next.

Legend: B responses, T response tokens (right-padded), L prompt + response, V vocabulary.

Worked example, one puzzle with two tokens of answer and B = 1, P = 3 prompt tokens, T = 2, L = 5:
    prompt_ids [17, 4, 9], response_ids [8, 2] ->
    input_ids [[17, 4, 9, 8, 2]], prompt_lengths [3], response_mask [[True, True]].
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

FinishReason: TypeAlias = Literal["stop", "length", "turns"]
"""`turns`: the env would have answered, but `env.max_turns` were over."""

OWN_EXTRA_INFO: Final = "own"
"""Field of `extra_info` with a user's own `extra_info`, as JSON; absent if no row has one."""


class Message(TypedDict):
    """One chat message, as in the `prompt` column."""

    role: str
    content: str


@dataclass(frozen=True)
class Problem:
    """One row of a data set, ready to be asked and scored."""

    index: int
    """Row number within its split."""
    data_source: str
    """verl's name of the data: `countdown` or `openai/gsm8k`."""
    messages: tuple[Message, ...]
    ground_truth: Any
    """In the env's own shape: {"target": 35, "numbers": [3, 14, 7]}, or a number as text."""
    num_solutions: int
    """Difficulty label; 0 if unknown."""
    extra_info: str = ""
    """The `extra_info` of a user's row, as JSON, for `env.reward`; empty if there is none."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a user's function gets as `extra_info`: the row's own keys over ours."""
        ours = {"index": self.index, "num_solutions": self.num_solutions}
        return ours | (json.loads(self.extra_info) if self.extra_info else {})


@dataclass(frozen=True)
class PromptedProblem:
    """A problem with its prompt as text and as token ids: tokenized once per run."""

    problem: Problem
    prompt_text: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class ScoredText:
    """A scorer's verdict on one response, whatever the env."""

    score: float
    verdict: str
    """`correct`, `wrong_value`, `no_answer`, ...; only `correct` counts as accuracy."""
    answer: str | None
    value: str | None = None
    """What the answer is equal to, in lowest terms: `18` or `7/2`; None if it has no value."""
    rewards: tuple[tuple[str, float], ...] = ()
    """Names and scores, before weights, of several functions; empty if there is one rule."""
    why: str = ""
    """Why a reward failed (`REWARD_ERROR`), in words."""


ChatTemplate: TypeAlias = bool | dict[str, Any]
"""Whether the tokenizer's chat template renders messages, or what it gets besides them."""
REWARD_ERROR: Final = "reward_error"
"""Verdict of a response whose reward failed: it has no score, and teaches nothing."""


@dataclass(frozen=True)
class SamplingSettings:
    """How an engine samples. `temperature` 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    """The likeliest tokens whose chances add up to this are kept, of those that `top_k` keeps."""
    top_k: int = -1
    """The likeliest tokens that are kept; -1 or 0: all."""
    stop: tuple[str, ...] = ()
    """Texts that also end a response; it keeps them, and all of the token that completes them."""


@dataclass(frozen=True)
class GenerationRequest:
    """One response to generate."""

    prompt_ids: tuple[int, ...]
    seed: int
    """Same seed, prompt and weights: same response, alone or in a batch."""
    max_tokens: int | None = None
    """The limit of this response, if less is left than `SamplingSettings.max_tokens`."""
    problem: int | None = None
    """The problem's index, to name what is unfinished."""


@dataclass(frozen=True)
class ToolCall:
    """A tool that a model called in a turn, and the reply."""

    name: str
    arguments: dict[str, Any]
    reply: str
    is_error: bool = False
    """The reply says why the tool gave none."""
    is_made: bool = True
    """Whether the tool was called, and its object may have changed."""


@dataclass(frozen=True)
class Turn:
    """A piece of a response, written by the model or inserted by the env."""

    is_model: bool
    num_tokens: int
    text: str
    reward: float = 0.0
    """Of a model's turn itself, in addition to the score of the whole response."""
    calls: tuple[ToolCall, ...] = ()
    """The tools that the model called in it."""


@dataclass(frozen=True)
class Completion:
    """What an engine returns for one request, or a model and its env for one rollout."""

    response_ids: npt.NDArray[np.int64]
    """int64 [T], with the end-of-sequence token if one was sampled."""
    logprobs: npt.NDArray[np.float32]
    """float32 [T], natural log, of the sampled tokens, after temperature; 0 at the env's."""
    finish_reason: FinishReason
    policy_version: int = 0
    """How many updates made the policy that sampled it."""
    turns: tuple[Turn, ...] = ()
    """All pieces of the response, the model's first and last; empty if the env took no part."""

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Which tokens the model sampled, bool [T]: all but the env's."""
        if not self.turns:
            return np.ones(len(self.response_ids), dtype=np.bool_)
        return np.repeat([t.is_model for t in self.turns], [t.num_tokens for t in self.turns])

    @property
    def num_sampled(self) -> int:
        """How many tokens the model sampled."""
        return len(self.response_ids) - sum(t.num_tokens for t in self.turns if not t.is_model)


@dataclass(frozen=True)
class Rollout:
    """A prompt, its response and its score: one row of the rollout log."""

    problem: Problem
    group_id: int
    sample_index: int
    prompt_text: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    response_text: str
    scored: ScoredText

    @property
    def reward(self) -> float:
        """The score of the whole response plus the rewards of its turns."""
        return self.scored.score + sum(turn.reward for turn in self.completion.turns)
