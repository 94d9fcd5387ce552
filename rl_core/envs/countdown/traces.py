"""Searches that a model learns from before reinforcement (data path stage 0).

Not a solver and not part of the reward: a writer of worked examples, of two kinds.

`write_trace` is for the home-made base model. It tries each number z as the LAST operand, and notes
what the others have to make, target first. Two make it:

    44 9 +53 -35 : 5 3 +8 no -2 no *15 no

reads: "44 and 9: 44+9=53 or 44-9=35 is needed; 5 and 3: 5+3=8 no, 5-3=2 no, 5*3=15 no". Each z
comes once, in the prompt's order: nothing in a search is left to chance but giving up. Sums come
before differences in both lists, which are one example then: it is learned in half the time.
Of four numbers each need is a target for the other three, and both are searched at once:

    44 9 +53 -35 ;
    53 6 +59 -47
    35 6 +41 -29 : 5 3 +8 no -2 no *15 no

After a "no" a trace may give up and answer `(5+3)+9`, which is known to be wrong by then.
If there is a calculator, it is asked for each value, ` <calc>5+3</calc>8 no` for ` +8 no`.

`write_worded_trace` is for pretrained models (`sft.data=traces`). A line is a try: its operations
with their results, and whether the last of them is the target. 20 tokens of SmolLM2, which spells
numbers by digits:

    44-19=25, 25+35=60 no
    44+19=63, 63+35=98 yes

The answer, `(44+19)+35`, is put together from the last line. Tries are drawn blindly, so they are
right as often as chance has it: from searches that end with a known solution a small model learns
that every fourth try is right, and makes it so by sums that are false (benchmarks/README.md). A
search ends at its first right try, or gives up and answers its last wrong one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rl_core.envs.countdown.scoring import CALL_CLOSE, CALL_OPEN, written_call

FEWEST, MOST = 3, 4
ANSWER_OPEN: Final = "</think>\n<answer>"
ANSWER_CLOSE: Final = "</answer>"
VERDICTS: Final = (" no", " yes")

_LINE: Final = re.compile(
    r"\n(?P<target>\d+) (?P<z>\d+)(?P<needs>(?: [-+*/]\d+)+)"
    r"(?P<end> ;| : (?P<x>\d+) (?P<y>\d+)(?P<results>(?: [-+*/]\d+ (?:no|yes))+))?"
)
_CALL: Final = re.compile(rf"{CALL_OPEN}\d+([-+*/])\d+{CALL_CLOSE}(\d+)")
_NEED: Final = re.compile(r" ([-+*/])(\d+)")
_RESULT: Final = re.compile(r" ([-+*/])(\d+) (no|yes)")
_MOST_TRIES: Final = 10
_DRAWS: Final = 100
"""From which the tries are taken: a result above twice the target can be seen to be too large."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One worked example."""

    text: str
    """The response, from after `<think>` to `</answer>`."""
    solved: bool
    """It ends with a "yes" and a right answer."""
    exhausted: bool
    """It ends because no number is left to try."""


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """What one response did, counted from its own text."""

    num_equations: int
    """Results written ("44-9=35" is written "44 9 ... -35")."""
    num_true_equations: int
    num_verdicts: int
    """Each "yes" and "no"."""
    num_right_verdicts: int
    """Those that agree with the numbers written before them in the attempt."""
    tried: tuple[tuple[int, ...], ...]
    """The last operands of each attempt, the very last first."""

    @property
    def repeats(self) -> bool:
        """Whether the same last operands were tried twice."""
        return len(set(self.tried)) < len(self.tried)


def pair_values(x: int, y: int, *, largest: int) -> list[tuple[str, int]]:
    """What two numbers, the larger first, can make without negative or fractional values.

    A product above `largest`, the largest value needed, is not worth writing.
    """
    values = [("+", x + y), ("-", x - y)]
    if x * y <= largest:
        values.append(("*", x * y))
    if y > 1 and x % y == 0:
        values.append(("/", x // y))
    return values


@dataclass(frozen=True, slots=True)
class Need:
    """What the numbers that are left must make: the target, or what completes the last need."""

    value: int
    sign: str = ""
    """The operation on the need before and z that gave it."""
    z: int = 0
    before: Need | None = None
    """None for the target."""

    def narrowed(self, z: int) -> list[Need]:
        """What is needed before z.

        The difference is unsigned: with z below the need `w + z` completes it, above it `z - w`.
        "w / z" is left out: 5 tokens and an eighth of the examples would save 1 problem in 80.
        """
        needs = [("+", self.value + z), ("-", abs(self.value - z))]
        if self.value % z == 0:
            needs.append(("/", self.value // z))
        return [Need(value, sign, z, self) for sign, value in needs]

    def answer(self, made: str) -> str:
        """The whole expression, from one that makes what is needed.

        It undoes each need: `-35` of 44 and 9 asks for a pair worth 35; 35 + 9 is 44.
        """
        if self.before is None:
            return made
        if self.sign == "-":
            is_above = self.before.value >= self.z
            whole = f"{made}+{self.z}" if is_above else f"{self.z}-{made}"
        else:
            whole = f"{made}{ {'+': '-', '/': '*'}[self.sign] }{self.z}"
        return self.before.answer(f"({whole})" if self.before.before else whole)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Two numbers are left, x and the smaller y, to make one of some needs."""

    text: str
    """What is written before the first result."""
    needs: list[Need]
    x: int
    y: int
    sum: str
    """An answer that adds up all numbers."""


_Shown = Callable[[int, str, int, int], str]


def _attempts(numbers: Sequence[int], needs: list[Need], shown: _Shown) -> Iterator[_Attempt]:
    """Yields all that can be tried, in the numbers' order."""
    for z in dict.fromkeys(numbers):
        rest = list(numbers)
        rest.remove(z)
        # Nothing is said of a need of 0: three numbers seldom make it.
        narrowed = [(need.value, need.narrowed(z)) for need in needs if need.value]
        lines = "".join(
            f"\n{target} {z}"
            + "".join(f" {shown(max(target, z), n.sign, min(target, z), n.value)}" for n in found)
            for target, found in narrowed
        )
        below = [need for _, found in narrowed for need in found]
        if len(rest) < FEWEST:
            x, y = max(rest), min(rest)
            yield _Attempt(f"{lines} : {x} {y}", below, x, y, f"({x}+{y})+{z}")
            continue
        for place, attempt in enumerate(_attempts(rest, below, shown)):
            text = attempt.text if place else f"{lines} ;{attempt.text}"
            yield replace(attempt, text=text, sum=f"({attempt.sum})+{z}")


def write_trace(
    numbers: Sequence[int],
    target: int,
    *,
    give_up_prob: float,
    rng: random.Random,
    calls: bool = False,
) -> Trace:
    """Returns a search that stops at the first hit, or gives up, or runs out of numbers.

    It may give up after each "no"; with `calls` a calculator is asked for each value.
    """
    check_problem(numbers, target)
    shown = written_call if calls else _shown
    parts: list[str] = []
    attempts = list(_attempts(numbers, [Need(target)], shown))
    for attempt in attempts:
        x, y = attempt.x, attempt.y
        parts.append(attempt.text)
        results = pair_values(x, y, largest=max(need.value for need in attempt.needs))
        for op, value in results:
            hit = next((need for need in attempt.needs if need.value == value), None)
            made = f" {shown(x, op, y, value)}"
            if hit is not None:
                parts.append(f"{made} yes")
                answer = hit.answer(f"({x}{op}{y})")
                return Trace(_finish(parts, answer), solved=True, exhausted=False)
            parts.append(f"{made} no")
            if rng.random() < give_up_prob:
                last = attempt is attempts[-1] and (op, value) == results[-1]
                return Trace(_finish(parts, attempt.sum), solved=False, exhausted=last)
    return Trace(_finish(parts, attempts[-1].sum), solved=False, exhausted=True)


def check_problem(numbers: Sequence[int], target: int) -> None:
    """Raises ValueError unless there are three or four positive numbers."""
    if not FEWEST <= len(numbers) <= MOST or min(*numbers, target) < 1:
        raise ValueError(
            f"the home-made base model searches over {FEWEST} or {MOST} positive numbers, not over "
            f"{list(numbers)} with target {target}: set model.path to a pretrained model"
        )


def is_covered(numbers: Sequence[int], target: int) -> bool:
    """Says whether a search that never gives up solves this problem."""
    return write_trace(numbers, target, give_up_prob=0.0, rng=random.Random(0)).solved


def check_response(response: str) -> TraceCheck:
    """What a response did: true equations, right verdicts and attempts, from its text only."""
    equations: list[tuple[int, int, str, int]] = []
    num_equations = num_true = verdicts = right_verdicts = 0
    tried: list[tuple[int, ...]] = []
    needed: set[int] = set()
    outer: tuple[int, ...] = ()
    for line in _LINE.finditer(_CALL.sub(r"\1\2", response)):
        target, z = int(line["target"]), int(line["z"])
        needs = [(op, int(value)) for op, value in _NEED.findall(line["needs"])]
        equations += [(target, z, op, value) for op, value in needs]
        needed |= {value for _, value in needs}
        if line["end"] is None:
            continue
        if line["results"] is None:
            outer, needed = (z,), set()
            continue
        x, y = int(line["x"]), int(line["y"])
        results = [(op, int(v), word) for op, v, word in _RESULT.findall(line["results"])]
        equations += [(x, y, op, value) for op, value, _ in results]
        num_equations += len(equations)
        num_true += sum(_is_true(*equation) for equation in equations)
        verdicts += len(results)
        right_verdicts += sum((value in needed) == (word == "yes") for _, value, word in results)
        tried.append((*outer, z))
        equations, needed = [], set()
    return TraceCheck(num_equations, num_true, verdicts, right_verdicts, tuple(tried))


def _shown(x: int, op: str, y: int, value: int) -> str:
    return f"{op}{value}"


def _finish(parts: Sequence[str], answer: str) -> str:
    return f"{''.join(parts)}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def _is_true(a: int, b: int, op: str, value: int) -> bool:
    if op == "/":
        return b != 0 and a == b * value
    return value == {"+": a + b, "*": a * b, "-": abs(a - b)}[op]


def write_worded_trace(
    numbers: Sequence[int], target: int, *, give_up_prob: float, rng: random.Random
) -> str:
    """Returns a response, from after `<think>` to `</answer>`.

    It may give up after each wrong try, and does after ten, or where no other was drawn.
    """
    drawn = [_random_try(numbers, rng) for _ in range(_DRAWS)]
    near = [one for one in drawn if one[2] <= 2 * target] or drawn[:1]
    lines: list[str] = []
    for steps, (expression, value) in {steps: rest for steps, *rest in near}.items():
        lines.append(f"\n{steps} {'yes' if value == target else 'no'}")
        answer = expression
        if value == target or len(lines) == _MOST_TRIES or rng.random() < give_up_prob:
            break
    return f"{''.join(lines)}\n</think>\n<answer>{answer}</answer>"


def _random_try(numbers: Sequence[int], rng: random.Random) -> tuple[str, str, int]:
    """Returns the steps, the expression and the value of a try that takes all numbers.

    Nothing on the way is negative or fractional.
    """
    pool, steps = [(str(number), number) for number in numbers], []
    while len(pool) > 1:
        (left, x), (right, y) = (pool.pop(rng.randrange(len(pool))) for _ in range(2))
        if x < y:
            left, x, right, y = right, y, left, x
        results = {"+": x + y, "-": x - y, "*": x * y}
        if y > 1 and x % y == 0:
            results["/"] = x // y
        sign = rng.choice(list(results))
        text = f"{left}{sign}{right}"
        pool.append((f"({text})" if pool else text, results[sign]))
        steps.append(f"{x}{sign}{y}={results[sign]}")
    return ", ".join(steps), *pool[0]
