"""Searches that a model learns from before reinforcement (data path stage 0).

Not a solver and not part of the reward: a writer of worked examples, for the home-made base model
and for SFT of others (`sft.data=traces`). A search tries each number z as the LAST operand: it
notes target, z, and what the others must make. With two others left:

    44 9 +53 -35 : 5 3 +8 no -2 no *15 no

reads: "44 and 9: 44+9=53 or 44-9=35 is needed; 5 and 3: 5+3=8 no, 5-3=2 no, 5*3=15 no". Each z
comes once, in the prompt's order: only giving up is random. Sums come before differences in both
lists, so that both show the same pattern: it is learned in half the time. With four numbers each
need is a target for the other three, and both are searched at once:

    44 9 +53 -35 ;
    53 6 +59 -47
    35 6 +41 -29 : 5 3 +8 no -2 no *15 no

After a "no" a trace may give up and answer `(5+3)+9`, which is known to be wrong by then.

Random searches were tried for pretrained models: in greedy decoding they repeat themselves
(benchmarks/README.md).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import ClassVar, Final

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.sft_examples import GATE_PROBLEMS, TOKENIZER_TEXTS, SftExamples, SftText

FEWEST = 3
MOST = 4
ANSWER_OPEN: Final = "</think>\n<answer>"
ANSWER_CLOSE: Final = "</answer>"
VERDICTS: Final = (" no", " yes")
_CORPUS_GIVE_UP_PROBS: Final = {3: 0.1, 4: 0.05}
"""By the most numbers of a problem. Traces give up less often than the model shall: loss weights on
this choice make up for it, so that deep searches, which are rare at `give_up_prob`, are still seen
often. Four numbers have searches of up to 40 verdicts."""
_VERDICT_WEIGHT: Final = 3.0
"""Verdicts are learned last; one token in eight is one."""
_MOST_OF_TWO_DIGITS: Final = 99

_LINE: Final = re.compile(
    r"\n(?P<target>\d+) (?P<z>\d+)(?P<needs>(?: [-+*/]\d+)+)"
    r"(?P<end> ;| : (?P<x>\d+) (?P<y>\d+)(?P<results>(?: [-+*/]\d+ (?:no|yes))+))?"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """One worked example."""

    text: str
    """The response, from after `<think>` to `</answer>`."""
    solved: bool
    """It ends with a "yes" and a right answer."""
    exhausted: bool
    """It ends because no number is left to try."""


def pair_values(x: int, y: int, *, largest: int) -> list[tuple[str, int]]:
    """Returns what x and y, x >= y, can make without negative or fractional values.

    Products above `largest`, the largest value needed, are left out.
    """
    values = [("+", x + y), ("-", x - y)]
    if x * y <= largest:
        values.append(("*", x * y))
    if y > 1 and x % y == 0:
        values.append(("/", x // y))
    return values


@dataclass(frozen=True, slots=True)
class Need:
    """What the numbers that are left must make: the target, or a value that leads to `before`."""

    value: int
    sign: str = ""
    """The operation that gave `value` from the need before and z."""
    z: int = 0
    before: Need | None = None
    """None for the target."""

    def narrowed(self, z: int) -> list[Need]:
        """Returns what the other numbers must make if z is the last operand.

        The difference is unsigned: with z below the need, `w + z` makes it; with z above, `z - w`.
        "w / z" is left out: 5 tokens and an eighth of the examples would save 1 problem in 80.
        """
        needs = [("+", self.value + z), ("-", abs(self.value - z))]
        if self.value % z == 0:
            needs.append(("/", self.value // z))
        return [Need(value, sign, z, self) for sign, value in needs]

    def answer(self, made: str) -> str:
        """Returns the whole expression from `made`, which makes this need: each need is undone.

        `-35` of 44 and 9 asks for a pair worth 35; 35 + 9 is 44.
        """
        if self.before is None:
            return made
        whole = f"{made}{ {'+': '-', '/': '*', '-': '+'}[self.sign] }{self.z}"
        if self.sign == "-" and self.before.value < self.z:
            whole = f"{self.z}-{made}"
        return self.before.answer(f"({whole})" if self.before.before else whole)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A try to make one of some needs from the last two numbers, x and the smaller y."""

    text: str
    """What is written before the first result."""
    needs: list[Need]
    x: int
    y: int
    sum: str
    """An answer that adds up all numbers."""


def _attempts(numbers: Sequence[int], needs: list[Need]) -> Iterator[_Attempt]:
    for z in dict.fromkeys(numbers):
        rest = list(numbers)
        rest.remove(z)
        # A need of 0 is not written: three numbers seldom make it.
        narrowed = [(need.value, need.narrowed(z)) for need in needs if need.value]
        lines = "".join(
            f"\n{target} {z}" + "".join(f" {need.sign}{need.value}" for need in others)
            for target, others in narrowed
        )
        below = [need for _, others in narrowed for need in others]
        if len(rest) < FEWEST:
            x, y = sorted(rest, reverse=True)
            yield _Attempt(f"{lines} : {x} {y}", below, x, y, f"({x}+{y})+{z}")
            continue
        for place, attempt in enumerate(_attempts(rest, below)):
            yield replace(
                attempt,
                text=attempt.text if place else f"{lines} ;{attempt.text}",
                sum=f"({attempt.sum})+{z}",
            )


def write_trace(
    numbers: Sequence[int], target: int, *, give_up_prob: float, rng: random.Random
) -> Trace:
    """Returns a search that stops at the first hit, or gives up, or runs out of numbers.

    It may give up after each "no".
    """
    check_problem(numbers, target)
    parts: list[str] = []
    attempts = list(_attempts(numbers, [Need(target)]))
    for attempt in attempts:
        parts.append(attempt.text)
        largest = max(need.value for need in attempt.needs)
        results = pair_values(attempt.x, attempt.y, largest=largest)
        for op, value in results:
            hit = next((need for need in attempt.needs if need.value == value), None)
            if hit is not None:
                parts.append(f" {op}{value} yes")
                text = _finish(parts, hit.answer(f"({attempt.x}{op}{attempt.y})"))
                return Trace(text, solved=True, exhausted=False)
            parts.append(f" {op}{value} no")
            if rng.random() < give_up_prob:
                return Trace(
                    _finish(parts, attempt.sum),
                    solved=False,
                    exhausted=attempt is attempts[-1] and (op, value) == results[-1],
                )
    return Trace(_finish(parts, attempts[-1].sum), solved=False, exhausted=True)


def check_problem(numbers: Sequence[int], target: int) -> None:
    """Raises ValueError unless there are three or four positive numbers."""
    if not FEWEST <= len(numbers) <= MOST or min(*numbers, target) < 1:
        raise ValueError(
            f"searches are written for {FEWEST} or {MOST} positive numbers, not for "
            f"{list(numbers)} with target {target}: set model.path to a pretrained model, "
            "without sft.data=traces"
        )


def check_response(response: str) -> tuple[list[bool], list[bool]]:
    """Returns whether each result in a text is true, and whether each "yes" and "no" is right.

    Only the text counts: "44 9 -35" says that 44-9 is 35, and a verdict is right if it agrees with
    the numbers written before it in the attempt.
    """
    results = list[bool]()
    verdicts = list[bool]()
    pending = list[bool]()
    needed = set[int]()
    for line in _LINE.finditer(response):
        target = int(line["target"])
        z = int(line["z"])
        needs = [(op, int(value)) for op, value in re.findall(r" ([-+*/])(\d+)", line["needs"])]
        pending += [_is_true(target, z, op, value) for op, value in needs]
        needed |= {value for _, value in needs}
        if line["end"] is None:
            continue
        if line["results"] is None:
            needed = set()
            continue
        x = int(line["x"])
        y = int(line["y"])
        tries = [
            (op, int(v), word)
            for op, v, word in re.findall(r" ([-+*/])(\d+) (no|yes)", line["results"])
        ]
        results += pending + [_is_true(x, y, op, value) for op, value, _ in tries]
        verdicts += [(value in needed) == (word == "yes") for _, value, word in tries]
        pending = []
        needed = set()
    return results, verdicts


def _finish(parts: Sequence[str], answer: str) -> str:
    return f"{''.join(parts)}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def _is_true(a: int, b: int, op: str, value: int) -> bool:
    if op == "/":
        return b != 0 and a == b * value
    return value == {"+": a + b, "*": a * b, "-": abs(a - b)}[op]


@dataclass(frozen=True)
class SearchExamples(SftExamples):
    """Fresh search traces over the train problems, of three or four positive numbers each.

    `train` and `test` hold (prompt, (numbers, target)).
    """

    floors: ClassVar = {"format_share": 0.9, "arithmetic_share": 0.9, "judging_share": 0.9}
    """Above them reinforcement learning worked: with 0.92 of sums true, accuracy went from 0.29 to
    0.72; with 0.95, from 0.24 to 0.83 (benchmarks/README.md)."""
    marks: ClassVar = (*VERDICTS, ANSWER_OPEN + "(", ANSWER_OPEN + "((")
    """The verdicts, and how an answer of three or of four numbers begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for _, problem in (*self.train, *self.test):
            check_problem(*problem)

    @property
    def digits_per_token(self) -> int:
        """3 if all targets have two digits: numbers of one token are easy to compare.

        There are too many larger numbers to learn each one: they are split into digits.
        """
        return 3 if max(target for _, (_, target) in self.train) <= _MOST_OF_TWO_DIGITS else 1

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts, and as many traces."""
        texts = [prompt for prompt, _ in self.train[:TOKENIZER_TEXTS]]
        return texts + [self._trace(rng.choice(self.train)[1], rng).text for _ in texts]

    def draw(self, count: int, rng: random.Random) -> list[SftText]:
        """Returns fresh traces of problems chosen by chance."""
        return [
            SftText(prompt, trace.text, trace)
            for prompt, problem in rng.choices(self.train, k=count)
            for trace in [self._trace(problem, rng)]
        ]

    def _trace(self, problem: tuple[Sequence[int], int], rng: random.Random) -> Trace:
        return write_trace(*problem, give_up_prob=self._corpus_give_up_prob, rng=rng)

    @cached_property
    def _corpus_give_up_prob(self) -> float:
        return _CORPUS_GIVE_UP_PROBS[max(len(numbers) for _, (numbers, _) in self.train)]

    def weigh(self, text: SftText, response: Sequence[int], marks: Sequence[int]) -> list[float]:
        """Returns 1 per token, 3 per verdict, and after a "no" wanted / written probability.

        So the model learns to give up with `give_up_prob`, though the traces seldom do. The last
        "no" of an exhausted search leaves no choice: weight 1.
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
        """Returns shares of greedy responses, one per held-out problem.

        `format_share`: of responses with a well-formed answer of the given numbers;
        `arithmetic_share`: of true results; `judging_share`: of right verdicts.
        """
        scored = [
            score_response(text, *problem).verdict
            for text, (_, problem) in zip(responses, self.test[:GATE_PROBLEMS], strict=True)
        ]
        checks = zip(*map(check_response, responses), strict=True)
        results, judged = (list(chain.from_iterable(parts)) for parts in checks)
        count = len(responses)
        return {
            "format_share": sum(v in ("correct", "wrong_value") for v in scored) / count,
            "arithmetic_share": sum(results) / max(len(results), 1),
            "judging_share": sum(judged) / max(len(judged), 1),
            "accuracy": scored.count("correct") / count,
        }
