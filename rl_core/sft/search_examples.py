"""Examples of Countdown: search traces with weights on the choice to give up, data path stage 0."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rl_core.config.base_model import BaseModelConfig
from rl_core.sft.examples import Example, require_problems
from rl_core.sft.gates import (
    NumbersAndTarget,
    PromptRenderer,
    failed_gates,
    measure_gates,
)
from rl_core.sft.search_traces import ANSWER_OPEN, VERDICTS, Trace, check_problem, write_trace

_CORPUS_GIVE_UP_PROB: Final = 0.1
"""Giving up is rarer in the traces than in the model: weights on the choice make up for it, so that
deep searches, which are rare at `give_up_prob`, are still seen often."""
_VERDICT_WEIGHT: Final = 3.0
"""Judging is what is learned last, from one token in eight."""
_TOKENIZER_TEXTS: Final = 2_000
_GATE_PROBLEMS: Final = 256


@dataclass(frozen=True)
class SearchExamples:
    """Fresh search traces over the train problems.

    Attributes:
        settings: How often the model shall give up, and how long it may talk.
        prompts: Texts for the tokenizer beside the traces.
        problems: (numbers, target) of the train split.
        holdout: (numbers, target) of the test split: the gates are measured on the first 256.
        render_prompt: The prompt text of (numbers, target).

    Raises:
        ValueError: If the problems are not of three positive numbers each, or there are none.
    """

    settings: BaseModelConfig
    prompts: Sequence[str]
    problems: Sequence[NumbersAndTarget]
    holdout: Sequence[NumbersAndTarget]
    render_prompt: PromptRenderer

    def __post_init__(self) -> None:
        require_problems(self.problems, self.holdout)
        for numbers, target in (*self.problems, *self.holdout):
            check_problem(numbers, target)

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns as many traces as prompts."""
        texts = list(self.prompts[:_TOKENIZER_TEXTS])
        return texts + [
            write_trace(*rng.choice(self.problems), give_up_prob=_CORPUS_GIVE_UP_PROB, rng=rng).text
            for _ in texts
        ]

    def examples(
        self, tokenizer: PreTrainedTokenizerFast, count: int, rng: random.Random
    ) -> list[Example]:
        """Returns fresh traces of problems chosen by chance."""
        problems = rng.choices(self.problems, k=count)
        traces = [
            write_trace(*problem, give_up_prob=_CORPUS_GIVE_UP_PROB, rng=rng)
            for problem in problems
        ]
        prompts = [self.render_prompt(*problem) for problem in problems]
        texts = prompts + [trace.text for trace in traces]
        # One call: the constants that the weights look for, the prompts, the responses.
        encoded = tokenizer([*VERDICTS, ANSWER_OPEN + "(", *texts])["input_ids"]
        [no, *_], [yes, *_], [give_up, *_], *ids = encoded
        examples = []
        for prompt, response, trace in zip(ids[:count], ids[count:], traces, strict=True):
            response.append(tokenizer.eos_token_id)
            weights = response_weights(
                response,
                trace,
                no_id=no,
                yes_id=yes,
                give_up_id=give_up,
                give_up_prob=self.settings.give_up_prob,
            )
            examples.append(Example(prompt + response, [0.0] * len(prompt) + weights))
        return examples

    def measure(
        self, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Returns `measure_gates` of the first held-out problems."""
        measured = measure_gates(
            model,
            tokenizer,
            self.holdout[:_GATE_PROBLEMS],
            self.render_prompt,
            max_tokens=self.settings.max_response_tokens,
        )
        return measured, failed_gates(measured)


def response_weights(
    response: Sequence[int],
    trace: Trace,
    *,
    no_id: int,
    yes_id: int,
    give_up_id: int,
    give_up_prob: float,
) -> list[float]:
    """Returns 1 per token, 3 per verdict, and after a "no" the ratio of wanted to written odds.

    With the latter the model learns to give up with `give_up_prob`, though the traces seldom do.
    The last "no" of an exhausted search leaves no choice: weight 1.
    """
    choices = [index for index in range(1, len(response)) if response[index - 1] == no_id]
    if trace.exhausted:
        choices.pop()
    weights = [_VERDICT_WEIGHT if token in (no_id, yes_id) else 1.0 for token in response]
    for index in choices:
        gave_up = response[index] == give_up_id
        weights[index] = (
            give_up_prob / _CORPUS_GIVE_UP_PROB
            if gave_up
            else (1 - give_up_prob) / (1 - _CORPUS_GIVE_UP_PROB)
        )
    return weights
