"""TinyZero's Countdown reward, its published rules in our own words: the peer of reward.py.

Only for texts that we wrote ourselves: it calls `eval`, and `9**9**9` hangs it.
"""

from __future__ import annotations

import re

FORMAT_SCORE, FULL_SCORE = 0.1, 1.0
START = "Assistant:"


def score(solution: str, numbers: list[int], target: int) -> float:
    """Returns 0 without an answer, 1 for the right value and 0.1 for anything else.

    Args:
        solution: prompt and response; what follows the first `Assistant:` (or Qwen's tag) counts.
        numbers: to be used exactly once each.
        target: compared within 1e-5.
    """
    answer = find_answer(solution)
    if answer is None:
        return 0.0
    if sorted(int(digits) for digits in re.findall(r"\d+", answer)) != sorted(numbers):
        return FORMAT_SCORE
    value = evaluate(answer)
    return FULL_SCORE if value is not None and abs(value - target) < 1e-5 else FORMAT_SCORE


def find_answer(solution: str) -> str | None:
    """Returns the last match on the last line."""
    for start in (START, "<|im_start|>assistant"):
        if start in solution:
            solution = solution.split(start, 1)[1]
            break
    else:
        return None
    matches = list(re.finditer(r"<answer>(.*?)</answer>", solution.split("\n")[-1]))
    return matches[-1].group(1).strip() if matches else None


def evaluate(answer: str) -> float | None:
    """Returns the value as a float; None if Python finds none."""
    try:
        if not re.match(r"^[\d+\-*/().\s]+$", answer):
            return None
        return eval(answer, {"__builtins__": None}, {})  # noqa: S307  # what the peer does
    except Exception:  # noqa: BLE001  # what the peer does
        return None
