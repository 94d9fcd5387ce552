"""What are the tries of searches in words worth, by what they say of themselves?

    .venv/bin/python benchmarks/worded_tries.py RUN_FOLDER STEPS_PER_ROW

Reads the rollouts of a run that was fine-tuned on `sft.data=traces` of Countdown. Prints per row of
steps and verdict ("yes", "no") how many tries there are, and which share uses the puzzle's own
numbers, has true results, does both, and makes the target by what it says.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import polars as pl

from rl_core.envs.countdown.scoring import evaluate

TRY = re.compile(r"\n(?P<steps>[^\s=]+=.+) (?P<verdict>no|yes)(?=\n)")
STEP = re.compile(r"(\d+|\(\d+/\d+\))[-+*/](\d+|\(\d+/\d+\))=")
NAMES = ("own", "true", "both", "makes")
PUZZLE = re.compile(r"numbers \[([\d, ]+)\].* equals (\d+)")


def read_try(steps: str, own: list[int], target: int) -> dict[str, bool]:
    """Says of `44+19=63, 63+35=98` whether it takes each number once, is true, and makes 98."""
    left, is_own, is_true, value = Counter(map(Fraction, own)), True, True, Fraction(0)
    try:
        for step in steps.split(", "):
            (asked, result), operands = step.split("="), STEP.match(step)
            if operands is None:
                return {}
            left.subtract(map(evaluate, operands.groups()))
            is_own = is_own and min(left.values()) >= 0
            value = evaluate(result)
            left[value] += 1
            is_true = is_true and evaluate(asked) == value
    except ValueError:  # no number, or a division by zero
        return {}
    is_own = is_own and left.total() == 1
    return {"own": is_own, "true": is_true, "both": is_own and is_true, "makes": value == target}


def main() -> None:
    """Prints the table."""
    folder, per_row = Path(sys.argv[1]), int(sys.argv[2])
    counts: Counter[tuple[int, str, str]] = Counter()
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for row in pl.read_parquet(file, columns=["step", "prompt", "response"]).to_dicts():
            asked = PUZZLE.search(row["prompt"])
            assert asked is not None, "a prompt of Countdown"
            own, target = json.loads(f"[{asked[1]}]"), int(asked[2])
            first = (row["step"] - 1) // per_row * per_row + 1
            for tried in TRY.finditer(row["response"]):
                found = {"tries": True} | read_try(tried["steps"], own, target)
                counts.update(
                    (first, tried["verdict"], name) for name, holds in found.items() if holds
                )
    print("| from step | says | tries | own numbers | true results | both | makes the target |")
    print("|---|---|---|---|---|---|---|")
    for first, verdict in sorted({key[:2] for key in counts}):
        tries = counts[first, verdict, "tries"]
        shares = [f"{counts[first, verdict, it] / tries:.2f}" for it in NAMES]
        print(f"| {first} | {verdict} | {tries} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
