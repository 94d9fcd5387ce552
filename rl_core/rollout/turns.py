"""Several turns: the env answers a response, and the model continues (`env.max_turns`), stage 3.

The model continues from the tokens that it sampled, and the env's text is tokenized separately: the
log-probs are of the sampled tokens, and tokenizing the text again could give others. A turn is a
request of its own; its prompt is the conversation so far, which vLLM holds in its prefix cache.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np

from rl_core.envs.text_env import EnvTurn, TextEnv
from rl_core.rewards.tools import Toolbox
from rl_core.system.seeds import seed_of
from rl_core.types import (
    Completion,
    FinishReason,
    GenerationRequest,
    Problem,
    SamplingSettings,
    ToolCall,
    Turn,
)

Stream: TypeAlias = Callable[
    [Sequence[GenerationRequest], SamplingSettings], Iterable[tuple[int, Completion]]
]


def within_bounds(turns: Sequence[Turn], score: float, *, full_score: float) -> tuple[Turn, ...]:
    """Returns the turns, their rewards cut so that the response's reward stays within bounds.

    The bounds are those of a score, 0 and `env.full_score`. The turns' rewards are added to the
    score in their order, and cut if the sum would leave the bounds: no number of turns is worth
    more than a correct answer, or less than nothing. A score beyond a bound, which a user's
    function may give, takes that bound's place.
    """
    low = min(score, 0.0)
    high = max(score, full_score)
    reward = score
    bounded = []
    for turn in turns:
        total = reward + turn.reward
        if not low <= total <= high:
            total = min(max(total, low), high)
            turn = replace(turn, reward=total - reward)
        reward = total
        bounded.append(turn)
    return tuple(bounded)


def turn_metrics(completions: Sequence[Completion], *, has_tools: bool) -> dict[str, float]:
    """Returns the model's turns per response: `rollout/turns_mean` and `_max`.

    And with tools, `rollout/tool_calls` per response, and `rollout/tool_errors` among them.
    """
    turns = [sum(turn.is_model for turn in c.turns) or 1 for c in completions]
    metrics = {"rollout/turns_mean": float(np.mean(turns)), "rollout/turns_max": float(max(turns))}
    if has_tools:
        calls = [call for c in completions for turn in c.turns for call in turn.calls]
        metrics["rollout/tool_calls"] = len(calls) / len(completions)
        metrics["rollout/tool_errors"] = sum(call.is_error for call in calls) / len(completions)
    return metrics


@dataclass
class _Dialogue:
    """A request's conversation so far."""

    request: GenerationRequest
    completions: list[Completion] = field(default_factory=list)
    """One per turn of the model."""
    replies: list[tuple[int, ...]] = field(default_factory=list)
    """The env's tokens after each of the model's turns but the last."""
    turns: list[Turn] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        pieces: list[int] = []
        for i, completion in enumerate(self.completions):
            pieces += completion.response_ids.tolist()
            pieces += self.replies[i] if i < len(self.replies) else ()
        return pieces

    def next_request(self, max_tokens: int) -> GenerationRequest:
        ids = self.ids
        return GenerationRequest(
            (*self.request.prompt_ids, *ids),
            seed_of(self.request.seed, len(self.completions)),
            max_tokens=max_tokens - len(ids),
            problem=self.request.problem,
        )

    def whole(self, finish_reason: FinishReason) -> Completion:
        """Returns all turns as one completion; if the env took no part, the engine's own."""
        last = replace(self.completions[-1], finish_reason=finish_reason)
        if not self.replies and not self.turns[-1].reward and not self.turns[-1].calls:
            return last
        logprobs: list[np.ndarray] = []
        for completion, token_ids in zip(self.completions, [*self.replies, ()], strict=True):
            logprobs += [completion.logprobs, np.zeros(len(token_ids), dtype=np.float32)]
        return Completion(
            response_ids=np.array(self.ids, dtype=np.int64),
            logprobs=np.concatenate(logprobs),
            finish_reason=finish_reason,
            policy_version=last.policy_version,
            turns=tuple(self.turns),
        )


class CallForm(Protocol):
    """How calls of tools and their replies are written, see `rl_core.data.tool_form`."""

    def calls_in(self, ids: Sequence[int], /) -> list[str]:
        """Returns the calls of a turn, as JSON."""

    def reply(self, replies: Sequence[str], /) -> str:
        """Returns what follows the turn."""


@dataclass(frozen=True)
class TurnTaking:
    """Lets a model and an env take turns; with one turn, it passes the engine's answers on."""

    env: TextEnv
    decode: Callable[[Sequence[int]], str]
    """Token ids to text, without special tokens."""
    encode: Callable[[str], Sequence[int]]
    """The env's text to token ids, special tokens recognised."""
    toolbox: Toolbox | None = None
    """Calls the env's tools; then `form` reads the calls."""
    form: CallForm | None = None

    def play(
        self,
        stream: Stream,
        requests: Sequence[GenerationRequest],
        sampling: SamplingSettings,
        problems: Sequence[Problem],
    ) -> Iterator[tuple[int, Completion]]:
        """Yields each request's whole response with its position, as soon as it is complete.

        The next turn begins when all responses have ended the current one. `sampling.max_tokens` is
        the limit of a whole response, including the env's tokens.
        """
        if self.env.max_turns == 1:
            yield from stream(requests, sampling)
            return
        sampling = replace(sampling, stop=self.env.stop)
        dialogues = [_Dialogue(request) for request in requests]
        open_requests = list(requests)
        positions = list(range(len(requests)))
        while open_requests:
            goes_on = []
            completions = stream(open_requests, sampling)
            ended = ((positions[i], completion) for i, completion in completions)
            for position, reply in self._replies(ended, dialogues, problems):
                dialogue = dialogues[position]
                reason = self._take(dialogue, reply, sampling.max_tokens)
                if reason is None:
                    goes_on.append(position)
                else:
                    yield position, dialogue.whole(reason)
            positions = sorted(goes_on)  # whichever ended first: groups stay together
            open_requests = [dialogues[i].next_request(sampling.max_tokens) for i in positions]

    def _replies(
        self,
        ended: Iterable[tuple[int, Completion]],
        dialogues: Sequence[_Dialogue],
        problems: Sequence[Problem],
    ) -> Iterator[tuple[int, EnvTurn | None]]:
        """Adds the model's turns, and yields the env's reply to each; tools' when all are made."""
        pending: dict[int, Future[tuple[ToolCall, ...]]] = {}
        for position, completion in ended:
            dialogue = dialogues[position]
            ids = completion.response_ids.tolist()
            texts: list[str] = []
            reply = None
            if completion.finish_reason == "stop" and self.toolbox and self.form:
                texts = self.form.calls_in(ids)
            elif completion.finish_reason == "stop":
                truth = problems[position].ground_truth
                reply = self.env.reply(self.decode([*dialogue.ids, *ids]), truth)
            if texts and self.toolbox:
                before = tuple(dialogue.turns)
                pending[position] = self.toolbox.submit_calls(texts, before, problems[position])
            dialogue.completions.append(completion)
            dialogue.turns.append(Turn(True, len(ids), self.decode(ids)))
            if not texts:
                yield position, reply
        for position, made in pending.items():
            calls = made.result()
            turns = dialogues[position].turns
            turns[-1] = replace(turns[-1], calls=calls)
            assert self.form is not None
            yield position, EnvTurn(self.form.reply([call.reply for call in calls]))

    def _take(
        self, dialogue: _Dialogue, reply: EnvTurn | None, max_tokens: int
    ) -> FinishReason | None:
        """Adds the env's reply to a turn; returns why the response ended, None if it continues."""
        if reply is None:
            return dialogue.completions[-1].finish_reason
        ids = dialogue.ids
        dialogue.turns[-1] = replace(dialogue.turns[-1], reward=reply.reward)
        token_ids = tuple(self.encode(reply.text))
        if len(dialogue.completions) == self.env.max_turns:
            return "turns"
        if len(ids) + len(token_ids) >= max_tokens:  # no room for anything to follow
            return "length"
        dialogue.replies.append(token_ids)
        dialogue.turns.append(Turn(False, len(token_ids), reply.text))
        return None
