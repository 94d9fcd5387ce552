"""Examples for Countdown: search traces with weights on the choice to give up, data path stage 0.

The gates are not the evaluation of a run: that scores any model, these read the traces as well.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from rl_core.envs.countdown.scoring import score_response, turns_of
from rl_core.envs.countdown.traces import (
    ANSWER_OPEN,
    VERDICTS,
    Trace,
    check_problem,
    check_response,
    is_covered,
    write_trace,
)
from rl_core.envs.sft_examples import GATE_PROBLEMS, TOKENIZER_TEXTS, SftExamples, SftText

_CORPUS_GIVE_UP_PROBS: Final = {3: 0.1, 4: 0.05}
"""By the most numbers there are. Giving up is rarer in the traces than in the model: weights on the
choice make up for it, so that deep searches, which are rare at `give_up_prob`, are still seen
often. Four numbers have searches of up to 40 verdicts."""
_VERDICT_WEIGHT: Final = 3.0
"""Judging is what is learned last, from one token in eight."""
_MOST_OF_TWO_DIGITS: Final = 99


@dataclass(frozen=True)
class SearchExamples(SftExamples):
    """Fresh search traces over the train problems, of three or four positive numbers each.

    `train` and `test` hold (prompt, (numbers, target)).
    """

    floors: ClassVar = {"format_share": 0.9, "arithmetic_share": 0.9, "judging_share": 0.9}
    """Reinforcement learning made use of what lies above: sums of 0.92 went from 0.29 to 0.72, of
    0.95 from 0.24 to 0.83 (benchmarks/README.md)."""
    ceilings: ClassVar = {"repetition_share": 0.05}
    marks: ClassVar = (*VERDICTS, ANSWER_OPEN + "(", ANSWER_OPEN + "((")
    """The verdicts, and how an answer of three or of four numbers begins."""

    calls: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for _, problem in (*self.train, *self.test):
            check_problem(*problem)

    @property
    def digits_per_token(self) -> int:
        """3 if all targets have two digits: a number of one token is judged at a glance.

        Larger numbers are too many to be learned one by one, and are spelt.
        """
        return 3 if max(target for _, (_, target) in self.train) <= _MOST_OF_TWO_DIGITS else 1

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts, and as many traces."""
        texts = [prompt for prompt, _ in self.train[:TOKENIZER_TEXTS]]
        return texts + [self._trace(rng.choice(self.train)[1], rng).text for _ in texts]

    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns fresh traces of problems chosen by chance."""
        drawn = rng.choices(self.train, k=count)
        traces = [(prompt, self._trace(problem, rng)) for prompt, problem in drawn]
        return [SftText(prompt, t.text, t, turns_of(t.text)) for prompt, t in traces]

    def _trace(self, problem: tuple[Sequence[int], int], rng: random.Random) -> Trace:
        prob = self._corpus_give_up_prob
        return write_trace(*problem, give_up_prob=prob, rng=rng, calls=self.calls)

    @cached_property
    def _corpus_give_up_prob(self) -> float:
        return _CORPUS_GIVE_UP_PROBS[max(len(numbers) for _, (numbers, _) in self.train)]

    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns 1 per token, 3 per verdict, and after a "no" the ratio of wanted to written odds.

        With the latter the model learns to give up with `give_up_prob`, though the traces seldom
        do. The last "no" of an exhausted search leaves no choice: weight 1.
        """
        no, yes, *give_up = marks
        written = self._corpus_give_up_prob
        choices = [index for index in range(1, len(response)) if response[index - 1] == no]
        if text.note.exhausted:
            choices.pop()
        weights = [_VERDICT_WEIGHT if token in (no, yes) else 1.0 for token in response]
        gives_up = self.give_up_prob / written
        goes_on = (1 - self.give_up_prob) / (1 - written)
        for index in choices:
            weights[index] = gives_up if response[index] in give_up else goes_on
        return weights

    def judge(self, responses: Sequence[str]) -> dict[str, float]:
        """Returns shares of greedy responses, one per held-out problem, and counts per response.

        `coverage` is of the problems: those which a search that never gives up solves;
        `format_share` have a well-formed answer of the given numbers; `arithmetic_share` is of the
        results written, `judging_share` of the verdicts; `repetition_share` try a number twice.
        """
        problems = [problem for _, problem in self.test[:GATE_PROBLEMS]]
        verdicts = [
            score_response(text, numbers, target).verdict
            for text, (numbers, target) in zip(responses, problems, strict=True)
        ]
        checks = [check_response(text) for text in responses]
        equations = sum(check.num_equations for check in checks)
        judged = sum(check.num_verdicts for check in checks)
        count = len(problems)
        return {
            "coverage": sum(is_covered(*problem) for problem in problems) / count,
            "format_share": sum(v in ("correct", "wrong_value") for v in verdicts) / count,
            "arithmetic_share": sum(c.num_true_equations for c in checks) / max(equations, 1),
            "judging_share": sum(c.num_right_verdicts for c in checks) / max(judged, 1),
            "repetition_share": sum(check.repeats for check in checks) / count,
            "accuracy": verdicts.count("correct") / count,
            "mean_attempts": sum(len(check.tried) for check in checks) / count,
            "mean_verdicts": judged / count,
        }
