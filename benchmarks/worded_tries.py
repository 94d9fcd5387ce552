"""What are the tries of searches in words worth, by what they say of themselves?

    .venv/bin/python benchmarks/worded_tries.py RUN_FOLDER STEPS_PER_ROW

Reads the rollouts of a run that was fine-tuned on `sft.data=traces` of Countdown. Prints per row of
steps and verdict ("That is 44", "Not 44") how many tries there are, and which share uses the
puzzle's own numbers, has true results, and does both.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import polars as pl

from rl_core.envs.countdown.scoring import evaluate

TRY = re.compile(r"\nTry (?P<text>[^:]+): (?P<steps>.+)\. (?P<verdict>Not|That is) \d+\.")
NUMBERS = re.compile(r"numbers \[([\d, ]+)\]")


def sorted_numbers(text: str) -> list[int]:
    """Returns all numbers of a text."""
    return sorted(map(int, re.findall(r"\d+", text)))


def are_true(steps: str) -> bool:
    """Whether each result follows: `44 + 19 = 63, 63 + 35 = 98`."""
    try:
        sides = [map(evaluate, map(str.strip, step.split(" = "))) for step in steps.split(", ")]
        return all(left == right for left, right in sides)
    except (ValueError, ZeroDivisionError):
        return False


def main() -> None:
    """Prints the table."""
    folder, per_row = Path(sys.argv[1]), int(sys.argv[2])
    counts: Counter[tuple[int, str, str]] = Counter()
    for file in sorted((folder / "rollouts").glob("*.parquet")):
        for row in pl.read_parquet(file, columns=["step", "prompt", "response"]).to_dicts():
            asked = NUMBERS.search(row["prompt"])
            assert asked is not None, "a prompt of Countdown"
            own, first = sorted_numbers(asked[1]), (row["step"] - 1) // per_row * per_row + 1
            for tried in TRY.finditer(row["response"]):
                is_own = sorted_numbers(tried["text"]) == own
                is_true = are_true(tried["steps"])
                key, both = (first, tried["verdict"]), is_own and is_true
                found = {"tries": True, "own": is_own, "true": is_true, "both": both}
                counts.update((*key, name) for name, holds in found.items() if holds)
    print("| from step | says | tries | own numbers | true results | both |")
    print("|---|---|---|---|---|---|")
    for first, verdict in sorted({key[:2] for key in counts}):
        tries = counts[first, verdict, "tries"]
        shares = [f"{counts[first, verdict, it] / tries:.2f}" for it in ("own", "true", "both")]
        print(f"| {first} | {verdict} | {tries} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
