"""The Countdown reward beside TinyZero's rules: completions per CPU second, and the slowest call.

    .venv/bin/python benchmarks/reward.py [--rounds 9]

20,000 completions of 50 to 3,000 characters, each to a puzzle of its own, written by a seeded
generator in the shares of `SHARES`. Both sides score all of them in turn, in `last_line` mode, one
process, one thread. TinyZero's rules are re-stated in peers/tinyzero.py; they also get the prompt,
as from TinyZero's trainer, since they look for its end.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from peers.tinyzero import score as tinyzero_score

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.templates import render_messages

COMPLETIONS = 20_000
LENGTHS = (50, 3_000)
TARGET_RATIO = 3.0
SHARES = {
    "correct": 0.40,
    "wrong value": 0.15,
    "wrong numbers": 0.20,
    "cut off before an answer": 0.14,
    "ends with = and a number": 0.05,
    "words as an answer": 0.03,
    "answer not on the last line": 0.02,
    "division by zero": 0.01,
}
HOSTILE = {
    "100,000 open tags": "<answer>" * 100_000,
    "100,000 tags, closed": "<answer>" * 100_000 + "</answer>",
    "100,000 parentheses": "<answer>" + "(" * 100_000 + "</answer>",
    "100,000 digits": "<answer>" + "9" * 100_000 + "</answer>",
    "a power tower": "<answer>9**9**9</answer>",
    "256 digits": "<answer>" + "9" * 256 + "</answer>",
    "128 factors": "<answer>" + "*".join(["9"] * 128) + "</answer>",
    "127 divisions": "<answer>" + "7/3/" * 63 + "5</answer>",
    "100,000 spaces": "<answer>" + " " * 100_000 + "</answer>",
    "1,000,000 x <": "<" * 1_000_000,
    "1,000,000 x <answer": "<answer" * 143_000 + "</answer>",
}
"""TinyZero hangs on some of them."""
_WORDS = ("so", "we", "can", "try", "to", "get", "this", "from", "that", "is", "too", "big", "hmm")


Completion = tuple[str, list[int], int]
"""A response, the numbers of its puzzle, and the target."""


def completions(seed: int) -> list[Completion]:
    """Returns the workload: the same for the same seed."""
    rng = random.Random(seed)
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=COMPLETIONS)
    return [completion(rng, kind) for kind in kinds]


def completion(rng: random.Random, kind: str) -> Completion:
    """Returns a completion of one kind of `SHARES`, of a length drawn evenly from `LENGTHS`."""
    numbers = [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))]
    text, value = expression(rng, numbers)
    while value.denominator > 1:
        text, value = expression(rng, numbers)
    target = int(value)
    if kind == "wrong value":
        target += rng.randint(1, 9)
    elif kind == "wrong numbers":
        numbers[0] = numbers[0] % 99 + 1
    elif kind == "ends with = and a number":
        text += f" = {target}"
    elif kind == "words as an answer":
        text = " ".join(rng.choices(_WORDS, k=4))
    elif kind == "division by zero":
        text, numbers = "{0} / ({1} - {1})".format(*numbers), [*numbers[:2], numbers[1]]
    answer = f"</think>\n<answer>{text}</answer>"
    if kind == "answer not on the last line":
        answer += "\nSo that is it."
    elif kind == "cut off before an answer":
        answer = ""
    length = rng.randint(*LENGTHS) - len(answer)
    return thinking(rng, length) + answer, numbers, target


def expression(rng: random.Random, numbers: list[int]) -> tuple[str, Fraction]:
    """Returns a random expression of the numbers, with few or many blanks, and its value."""
    blank = rng.choice(("", " "))
    terms = [(str(number), Fraction(number)) for number in rng.sample(numbers, len(numbers))]
    while len(terms) > 1:
        i = rng.randrange(len(terms) - 1)
        (left, x), (right, y) = terms[i : i + 2]
        symbol = rng.choice("+-*/" if y else "+-*")
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else y}[symbol]
        terms[i : i + 2] = [(f"({left}{blank}{symbol}{blank}{right})", value)]
    text, value = terms[0]
    return (text[1:-1] if rng.random() < 0.9 else text), value


def thinking(rng: random.Random, length: int) -> str:
    """Returns so many characters of attempts and words, with line breaks."""
    lines, written = [], 0
    while written < length:
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        lines.append(f"{' '.join(rng.choices(_WORDS, k=6))}: {a} {rng.choice('+-*')} {b} = {a + b}")
        written += len(lines[-1]) + 1
    return "\n".join(lines)[: max(length, 0)]


ours = partial(score_response, answer_from="last_line")


def cpu_seconds(score: Callable[..., Any], work: list[Completion]) -> float:
    """Returns the CPU seconds to score all of the work."""
    start = time.process_time()
    for response, numbers, target in work:
        score(response, numbers, target)
    return time.process_time() - start


def slowest_ms(work: list[Completion]) -> float:
    """Returns our slowest call in CPU milliseconds; a call's time is the best of three."""

    def once(item: Completion) -> float:
        start = time.process_time()
        score_response(*item)
        return time.process_time() - start

    return 1e3 * max(min(once(item) for _ in range(3)) for item in work)


def main() -> None:
    """Prints rates, their ratio, and the slowest calls."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    work = completions(seed=0)
    peers_work = [
        (render_messages("base", numbers, target)[0]["content"] + response, numbers, target)
        for response, numbers, target in work
    ]
    for mine, theirs in zip(work, peers_work, strict=True):
        assert ours(*mine).score == tinyzero_score(*theirs), mine
    verdicts = Counter(ours(*item).verdict for item in work)
    print(f"{COMPLETIONS:,} completions, all scored alike: {dict(verdicts.most_common())}")
    seconds: dict[str, list[float]] = {"tinyzero": [], "ours": []}
    for _ in range(rounds):
        seconds["tinyzero"].append(cpu_seconds(tinyzero_score, peers_work))
        seconds["ours"].append(cpu_seconds(ours, work))
    rates = {name: COMPLETIONS / statistics.median(taken) for name, taken in seconds.items()}
    ratios = [t / o for t, o in zip(seconds["tinyzero"], seconds["ours"], strict=True)]
    for name, rate in rates.items():
        print(f"{name:10} {rate:10,.0f} completions per CPU second (median of {rounds})")
    print(
        f"ours / tinyzero: {rates['ours'] / rates['tinyzero']:.2f}, in single rounds "
        f"{min(ratios):.2f} to {max(ratios):.2f}; target {TARGET_RATIO}"
    )
    print(f"slowest single call of ours: {slowest_ms(work):.3f} CPU ms on that workload")
    for name, text in HOSTILE.items():
        print(f"  {slowest_ms([(text, [9, 9, 9], 9)]):8.3f} ms  {name}")


if __name__ == "__main__":
    main()
