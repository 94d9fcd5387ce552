"""Examples for word problems: a data set's own solutions, many cut short, data path stage 0.

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
from typing import ClassVar, Final

from rl_core.envs.gsm8k.env import extract_truth, score_response
from rl_core.envs.gsm8k.word_problems import WORDS
from rl_core.envs.sft_examples import (
    GATE_PROBLEMS,
    TOKENIZER_TEXTS,
    SftExamples,
    SftText,
    require_problems,
)

THINK_CLOSE: Final = "</think>\n#### "

_GO_ON: Final = ".\n"
_STOP: Final = f".{THINK_CLOSE}"
_CORPUS_STOP_PROB: Final = 0.1
"""Stopping early is rarer in the examples than in the model: weights on the choice make up for it,
so that second and third steps, which are rare at `stop_prob`, are still seen often."""
_ANNOTATION: Final = re.compile(
    r"<<(?P<left>\d+)(?P<sign>[-+*/])(?P<right>\d+)=(?P<result>\d+)>>", re.ASCII
)


@dataclass(frozen=True)
class SolutionExamples(SftExamples):
    """Solutions of the train split, each step followed by an early end with a fixed chance.

    Numbers are spelt: with a token for each, fewer sums were true (benchmarks/README.md).
    """

    floors: ClassVar = {"format_share": 0.9, "arithmetic_share": 0.8}

    stop_prob: float
    """How often the model shall stop early."""
    train: Sequence[tuple[str, str]]
    """Prompts and solutions."""
    test: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        require_problems(self.train, self.test)

    @property
    def words(self) -> Sequence[str]:
        """Those of the stories, so that a phrase, and the choice to stop, are the same tokens."""
        return WORDS

    @property
    def marks(self) -> Sequence[str]:
        """What a line ends with: going on, and stopping. A tokenizer has a token for each."""
        return (_GO_ON, _STOP)

    @property
    def held_out(self) -> Sequence[str]:
        """Prompts of the first held-out problems."""
        return [prompt for prompt, _ in self.test[:GATE_PROBLEMS]]

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts, and responses as the model will write them."""
        pairs = self.train[:TOKENIZER_TEXTS]
        responses = [self._response(solution, rng) for _, solution in pairs]
        return [prompt for prompt, _ in pairs] + responses

    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns solutions chosen by chance."""
        pairs = rng.choices(self.train, k=count)
        responses = [self._response(solution, rng) for _, solution in pairs]
        return [
            SftText(prompt, response, _is_cut(response, solution))
            for (prompt, solution), response in zip(pairs, responses, strict=True)
        ]

    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns 1 per token, and at each choice to stop early the ratio of its odds, see below.

        The ratio is of the odds that are wanted to those that are written: the model learns to stop
        with `stop_prob`, though the examples seldom do.
        The end of a whole solution is no choice: weight 1. A text's note says whether it is cut.
        """
        weights = [1.0] * len(response)
        ends = [index for index, token in enumerate(response) if token in marks]
        for index in ends[:-1]:
            weights[index] = (1 - self.stop_prob) / (1 - _CORPUS_STOP_PROB)
        if text.note and ends:
            weights[ends[-1]] = self.stop_prob / _CORPUS_STOP_PROB
        return weights

    def judge(self, responses: Sequence[str]) -> dict[str, float]:
        """Returns what one greedy response per held-out problem is worth.

        Returns:
            format_share: Share of responses with a number after `####`.
            arithmetic_share: Share of the annotations that are true.
            accuracy: Share of responses that are correct.
            mean_steps: Annotations per response.
        """
        verdicts = [
            score_response(text, extract_truth(solution)).verdict
            for text, (_, solution) in zip(responses, self.test[:GATE_PROBLEMS], strict=True)
        ]
        steps = [is_true for text in responses for is_true in check_annotations(text)]
        count = len(responses)
        return {
            "format_share": 1 - verdicts.count("no_answer") / count,
            "arithmetic_share": sum(steps) / max(len(steps), 1),
            "accuracy": verdicts.count("correct") / count,
            "mean_steps": len(steps) / count,
        }

    def _response(self, solution: str, rng: random.Random) -> str:
        return write_response(solution, stop_prob=_CORPUS_STOP_PROB, rng=rng)


def write_response(solution: str, *, stop_prob: float, rng: random.Random) -> str:
    """Returns a solution as a response to the prompt template `think`, perhaps cut short.

    Args:
        solution: lines of steps, and `#### 18` on the last line.
        stop_prob: chance of stopping after each step but the last [0, 1].
        rng: decides it.
    """
    *lines, _ = solution.split("\n")
    written: list[str] = []
    for line in lines[:-1]:
        written.append(line)
        annotation = _ANNOTATION.search(line)
        if annotation and rng.random() < stop_prob:
            return _finish(written, annotation["result"])
    return _finish(lines, extract_truth(solution))


def write_in_words(solution: str, *, thinks: bool) -> str:
    """Returns a data set's solution, whole and without calculator annotations, as a response."""
    *lines, _ = re.sub(r"<<[^>]*>>", "", solution).split("\n")
    number = extract_truth(solution)
    return _finish(lines, number) if thinks else "\n".join([*lines, f"#### {number}"])


def check_annotations(text: str) -> list[bool]:
    """Returns for each calculator annotation, `<<12+5=17>>`, whether it is true."""
    return [
        _is_true(int(found["left"]), found["sign"], int(found["right"]), int(found["result"]))
        for found in _ANNOTATION.finditer(text)
    ]


def _finish(lines: Sequence[str], number: str) -> str:
    body = "\n".join(lines)
    return f"\n{body}{THINK_CLOSE}{number}"


def _is_cut(response: str, solution: str) -> bool:
    return len(check_annotations(response)) < len(check_annotations(solution))


def _is_true(left: int, sign: str, right: int, result: int) -> bool:
    if sign == "/":
        return right != 0 and Fraction(left, right) == result
    return result == {"+": left + right, "-": left - right, "*": left * right}[sign]
