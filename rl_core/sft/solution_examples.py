"""Examples of word problems: a data set's own solutions, many of them cut short, data path stage 0.

A solution in GSM8K's form has one line per step, each with its result in a calculator annotation,
`12 + 5 = <<12+5=17>>17 pens.`. An example that is cut short after a line answers with that line's
result: right in form, true in its sums, and wrong. When to go on is left to reinforcement learning.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rl_core.config.base_model import BaseModelConfig
from rl_core.envs.gsm8k import extract_truth, score_response
from rl_core.sft.examples import Example, greedy_responses, require_problems

THINK_CLOSE: Final = "</think>\n#### "
GATE_FLOORS: Final = {"format_share": 0.9, "arithmetic_share": 0.8}

_ANNOTATION: Final = re.compile(
    r"<<(?P<left>\d+)(?P<sign>[-+*/])(?P<right>\d+)=(?P<result>\d+)>>", re.ASCII
)
_TOKENIZER_TEXTS: Final = 2_000
_GATE_PROBLEMS: Final = 256


@dataclass(frozen=True)
class SolutionExamples:
    """Solutions of the train split, each step followed by an early end with a fixed chance.

    Attributes:
        settings: How often the model shall stop early, and how long it may talk.
        train: (prompt, solution) of the train split.
        test: Those of the test split: the gates are measured on the first 256.

    Raises:
        ValueError: If there are none.
    """

    settings: BaseModelConfig
    train: Sequence[tuple[str, str]]
    test: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        require_problems(self.train, self.test)

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts, and responses as the model will write them."""
        return self._texts(self.train[:_TOKENIZER_TEXTS], rng)

    def examples(
        self, tokenizer: PreTrainedTokenizerFast, count: int, rng: random.Random
    ) -> list[Example]:
        """Returns solutions chosen by chance; the response alone is learned."""
        ids = tokenizer(self._texts(rng.choices(self.train, k=count), rng))["input_ids"]
        end = [tokenizer.eos_token_id]
        return [
            Example(prompt + response + end, [0.0] * len(prompt) + [1.0] * (len(response) + 1))
            for prompt, response in zip(ids[:count], ids[count:], strict=True)
        ]

    def measure(
        self, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Returns what one greedy response per held-out problem is worth.

        Returns:
            format_share: Share of responses with a number after `####`.
            arithmetic_share: Share of the annotations that are true.
            accuracy: Share of responses that are correct.
            mean_steps: Annotations per response.
            mean_prompt_tokens: Tokens per prompt.
            mean_response_tokens: Tokens per response, end included.
            (beside the gates missed, one sentence each)
        """
        problems = self.test[:_GATE_PROBLEMS]
        prompts = [prompt for prompt, _ in problems]
        responses = greedy_responses(
            model, tokenizer, prompts, max_tokens=self.settings.max_response_tokens
        )
        texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
        verdicts = [
            score_response(text, extract_truth(solution)).verdict
            for text, (_, solution) in zip(texts, problems, strict=True)
        ]
        steps = [is_true for text in texts for is_true in check_annotations(text)]
        count = len(problems)
        measured = {
            "format_share": 1 - verdicts.count("no_answer") / count,
            "arithmetic_share": sum(steps) / max(len(steps), 1),
            "accuracy": verdicts.count("correct") / count,
            "mean_steps": len(steps) / count,
            "mean_prompt_tokens": sum(map(len, tokenizer(prompts)["input_ids"])) / count,
            "mean_response_tokens": sum(map(len, responses)) / count,
        }
        failed = tuple(
            f"{name} is {measured[name]:.3f}, below {floor}"
            for name, floor in GATE_FLOORS.items()
            if measured[name] < floor
        )
        return measured, failed

    def _texts(self, pairs: Sequence[tuple[str, str]], rng: random.Random) -> list[str]:
        """Returns all prompts, then all responses."""
        stop_prob = self.settings.give_up_prob
        responses = [write_response(text, stop_prob=stop_prob, rng=rng) for _, text in pairs]
        return [prompt for prompt, _ in pairs] + responses


def write_response(solution: str, *, stop_prob: float, rng: random.Random) -> str:
    """Returns a solution as a response to the prompt template `think`, perhaps cut short.

    Args:
        solution: lines of steps, and `#### 18` on the last line.
        stop_prob: chance of stopping after each step but the last [0, 1].
        rng: decides the stopping.
    """
    *lines, _ = solution.split("\n")
    written: list[str] = []
    for line in lines[:-1]:
        written.append(line)
        annotation = _ANNOTATION.search(line)
        if annotation and rng.random() < stop_prob:
            return _finish(written, annotation["result"])
    return _finish(lines, extract_truth(solution))


def check_annotations(text: str) -> list[bool]:
    """Returns for each calculator annotation, `<<12+5=17>>`, whether it is true."""
    return [
        _is_true(int(found["left"]), found["sign"], int(found["right"]), int(found["result"]))
        for found in _ANNOTATION.finditer(text)
    ]


def _finish(lines: Sequence[str], number: str) -> str:
    body = "\n".join(lines)
    return f"\n{body}{THINK_CLOSE}{number}"


def _is_true(left: int, sign: str, right: int, result: int) -> bool:
    if sign == "/":
        return right != 0 and Fraction(left, right) == result
    return result == {"+": left + right, "-": left - right, "*": left * right}[sign]
