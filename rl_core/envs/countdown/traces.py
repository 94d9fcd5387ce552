"""Searches that a model learns from before reinforcement (data path stage 0).

Not a solver and not part of the reward: a writer of worked examples, for the home-made base model
and for SFT of others (`sft.data=traces`). A search tries each number z as the LAST operand, and
notes what the others have to make, target first. Two make it:

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

Blind searches, tries drawn by chance, were tried for pretrained models: greedily they repeat
themselves (benchmarks/README.md).
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
            f"searches are written for {FEWEST} or {MOST} positive numbers, not for "
            f"{list(numbers)} with target {target}: set model.path to a pretrained model, "
            "without sft.data=traces"
        )


def is_covered(numbers: Sequence[int], target: int) -> bool:
    """Says whether a search that never gives up solves this problem."""
    return write_trace(numbers, target, give_up_prob=0.0, rng=random.Random(0)).solved


def check_response(response: str) -> TraceCheck:
    """What a response did: true equations, right verdicts and attempts, from its text only."""
    equations, verdicts = list[bool](), list[bool]()  # whether each is right
    tried: list[tuple[int, ...]] = []
    pending, needed, outer = list[bool](), set[int](), tuple[int, ...]()
    for line in _LINE.finditer(_CALL.sub(r"\1\2", response)):
        target, z = int(line["target"]), int(line["z"])
        needs = [(op, int(value)) for op, value in _NEED.findall(line["needs"])]
        pending += [_is_true(target, z, op, value) for op, value in needs]
        needed |= {value for _, value in needs}
        if line["end"] is None:
            continue
        if line["results"] is None:
            outer, needed = (z,), set()
            continue
        x, y = int(line["x"]), int(line["y"])
        results = [(op, int(v), word) for op, v, word in _RESULT.findall(line["results"])]
        equations += pending + [_is_true(x, y, op, value) for op, value, _ in results]
        verdicts += [(value in needed) == (word == "yes") for _, value, word in results]
        tried.append((*outer, z))
        pending, needed = [], set()
    return TraceCheck(len(equations), sum(equations), len(verdicts), sum(verdicts), tuple(tried))


def _shown(x: int, op: str, y: int, value: int) -> str:
    return f"{op}{value}"


def _finish(parts: Sequence[str], answer: str) -> str:
    return f"{''.join(parts)}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def _is_true(a: int, b: int, op: str, value: int) -> bool:
    if op == "/":
        return b != 0 and a == b * value
    return value == {"+": a + b, "*": a * b, "-": abs(a - b)}[op]
