"""Search traces for the home-made base model: data path stage 0, before any rollout exists.

Not a solver of its own and not part of the reward: a writer of worked examples. A trace tries each
number z as the LAST operand. It notes what the other two have to make, target first, and makes it:

    44 9 +53 -35 : 5 3 +8 no -2 no *15 no

reads: "44 and 9: 44+9=53 or 44-9=35 is needed; 5 and 3: 5+3=8 no, 5-3=2 no, 5*3=15 no". Each z
comes once, in the prompt's order: nothing in a search is left to chance but giving up. Sums come
before differences in both lists, which are one example then: it is learned in half the time.
After a "no" a trace may give up and answer `(5+3)+9`, which is known to be wrong by then.
Where there is a calculator it is asked for each value, ` <calc>5+3</calc>8 no` for ` +8 no`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rl_core.envs.countdown.calculator import CALL_CLOSE, CALL_OPEN, written_call

NUM_OPERANDS: Final = 3
ANSWER_OPEN: Final = "</think>\n<answer>"
ANSWER_CLOSE: Final = "</answer>"
VERDICTS: Final = (" no", " yes")

_ATTEMPT: Final = re.compile(
    r"\n(?P<target>\d+) (?P<z>\d+)(?P<needs>(?: [-+*/]\d+)+) : (?P<x>\d+) (?P<y>\d+)"
    r"(?P<results>(?: [-+*/]\d+ (?:no|yes))+)"
)
_CALL: Final = re.compile(rf"{CALL_OPEN}\d+([-+*/])\d+{CALL_CLOSE}(\d+)")
_NEED: Final = re.compile(r" ([-+*/])(\d+)")
_RESULT: Final = re.compile(r" ([-+*/])(\d+) (no|yes)")


@dataclass(frozen=True, slots=True)
class Trace:
    """One worked example.

    Attributes:
        text: The response, from after `<think>` to `</answer>`.
        solved: Whether it ends with a "yes" and a right answer.
        exhausted: Whether it ends because no number is left to try.
    """

    text: str
    solved: bool
    exhausted: bool


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """What one response did, counted from its own text.

    Attributes:
        num_equations: Results written ("44-9=35" is written "44 9 ... -35").
        num_true_equations: Those which are arithmetically true.
        num_verdicts: "yes" and "no" written.
        num_right_verdicts: Those which agree with the numbers written before them in the attempt.
        last_operands: The z of each attempt, in order.
    """

    num_equations: int
    num_true_equations: int
    num_verdicts: int
    num_right_verdicts: int
    last_operands: tuple[int, ...]

    @property
    def num_attempts(self) -> int:
        """How many times a z was tried."""
        return len(self.last_operands)

    @property
    def repeats(self) -> bool:
        """Whether some z was tried twice."""
        return len(set(self.last_operands)) < len(self.last_operands)


def needed_values(target: int, z: int) -> list[tuple[str, int]]:
    """What the other two numbers must make, each as (operation on target and z, value).

    The difference is unsigned: with z below the target `w + z` completes it, above it `z - w`.
    "w / z" is left out: it costs 5 tokens and an eighth of the examples, and saves 1 problem in 80.
    """
    needs = [("+", target + z), ("-", abs(target - z))]
    if target % z == 0:
        needs.append(("/", target // z))
    return needs


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


def complete_expression(pair: str, need: str, *, z: int, target: int) -> str:
    """The answer that undoes a need: `-35` of 44 and 9 asks for a pair worth 35; 35 + 9 is 44."""
    if need == "-":
        return f"{pair}+{z}" if target >= z else f"{z}-{pair}"
    return f"{pair}{ {'+': '-', '/': '*'}[need] }{z}"


def write_trace(
    numbers: Sequence[int],
    target: int,
    *,
    give_up_prob: float,
    rng: random.Random,
    calls: bool = False,
) -> Trace:
    """A search over one problem which stops at the first hit, or gives up, or runs out of numbers.

    Args:
        numbers: Three positive integers.
        target: A positive integer.
        give_up_prob: Chance of giving up after each "no" [0, 1].
        rng: Decides the giving up.
        calls: Whether a calculator is asked for each value.

    Raises:
        ValueError: If there are not exactly three positive numbers.
    """
    check_problem(numbers, target)
    shown = written_call if calls else _shown
    parts: list[str] = []
    order = list(dict.fromkeys(numbers))
    answer = ""
    for z in order:
        rest = list(numbers)
        rest.remove(z)
        x, y = max(rest), min(rest)
        needs = needed_values(target, z)
        listed = "".join(
            f" {shown(max(target, z), op, min(target, z), value)}" for op, value in needs
        )
        parts.append(f"\n{target} {z}{listed} : {x} {y}")
        answer = f"({x}+{y})+{z}"
        results = pair_values(x, y, largest=target + z)
        for op, value in results:
            need = next((need for need, needed in needs if needed == value), None)
            made = f" {shown(x, op, y, value)}"
            if need is not None:
                parts.append(f"{made} yes")
                answer = complete_expression(f"({x}{op}{y})", need, z=z, target=target)
                return Trace(_finish(parts, answer), solved=True, exhausted=False)
            parts.append(f"{made} no")
            if rng.random() < give_up_prob:
                last = z == order[-1] and (op, value) == results[-1]
                return Trace(_finish(parts, answer), solved=False, exhausted=last)
    return Trace(_finish(parts, answer), solved=False, exhausted=True)


def check_problem(numbers: Sequence[int], target: int) -> None:
    """Raise unless traces are defined for this problem.

    Raises:
        ValueError: If there are not exactly three positive numbers.
    """
    if len(numbers) != NUM_OPERANDS or min(*numbers, target) < 1:
        raise ValueError(
            f"the home-made base model searches over {NUM_OPERANDS} positive numbers, not over "
            f"{list(numbers)} with target {target}: set model.path to a pretrained model"
        )


def is_covered(numbers: Sequence[int], target: int) -> bool:
    """Whether a search that never gives up solves this problem."""
    return write_trace(numbers, target, give_up_prob=0.0, rng=random.Random(0)).solved


def check_response(response: str) -> TraceCheck:
    """What a response did: true equations, right verdicts and attempts, from its text alone."""
    equations = true_equations = verdicts = right_verdicts = 0
    last_operands: list[int] = []
    for attempt in _ATTEMPT.finditer(_CALL.sub(r"\1\2", response)):
        target, z, x, y = (int(attempt[name]) for name in ("target", "z", "x", "y"))
        needs = [(op, int(value)) for op, value in _NEED.findall(attempt["needs"])]
        results = [(op, int(v), word) for op, v, word in _RESULT.findall(attempt["results"])]
        pairs = [(target, z, op, value) for op, value in needs]
        pairs += [(x, y, op, value) for op, value, _ in results]
        equations += len(pairs)
        true_equations += sum(_is_true(*pair) for pair in pairs)
        needed = {value for _, value in needs}
        verdicts += len(results)
        right_verdicts += sum((value in needed) == (word == "yes") for _, value, word in results)
        last_operands.append(z)
    return TraceCheck(equations, true_equations, verdicts, right_verdicts, tuple(last_operands))


def _shown(x: int, op: str, y: int, value: int) -> str:
    return f"{op}{value}"


def _finish(parts: Sequence[str], answer: str) -> str:
    return f"{''.join(parts)}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def _is_true(a: int, b: int, op: str, value: int) -> bool:
    if op == "/":
        return b != 0 and a == b * value
    return value == {"+": a + b, "*": a * b, "-": abs(a - b)}[op]
