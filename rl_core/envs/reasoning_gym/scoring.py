"""The package's scoring of a response, as a reward function (data path stage 4).

Runs in reward workers. Nothing that a model wrote is executed: scorers that would do so are
replaced, or their task is refused (`REFUSED`), and each response is scored in a sealed process,
which ends with it. In version 0.1.25 these are all scorers that execute text of a model or a file,
and one that accepts any answer. Each of ours gives the score of the package's scorer, or less.
"""

import ast
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.reasoning_gym.truths import (
    INSTALL,
    REFUSED,
    WHY_REFUSED,
    from_json,
    with_enums,
)
from rl_core.envs.rows import find_answer
from rl_core.system.sealed import TooSlow, sealed

try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(INSTALL) from error

Truth = Mapping[str, Any]

LONGEST_ANSWER: Final = 10_000
"""Characters; a longer answer is wrong."""
_CPU_S: Final = 1.0
"""Of one response: honest answers take milliseconds."""

_ABSURD: Final = re.compile(r"(?<![a-z])(nan|inf(inity)?)[ij]?(?![a-z])|\de[+-]?[\d_]{4,}", re.I)
"""NaN and infinity, equal to any number in some scorers, and numbers that take seconds to read."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Mapping[str, Any], extra_info: Any = None
) -> dict[str, Any]:
    """Returns the package's score of the answer in tags, from 0 to 1; only 1 is correct.

    `NotSealed` is raised if scoring it would have done more than compute.
    """
    answer = find_answer(solution_str, "anywhere").strip()
    wrong = {"score": 0.0, "acc": False, "pred": answer or None}
    # Not a finite number, unless the right answer is not finite either.
    is_absurd = _ABSURD.search(answer) and not _ABSURD.search(str(ground_truth["answer"]))
    if not answer or len(answer) > LONGEST_ANSWER or is_absurd:
        return wrong
    task = _open_task(ground_truth["task"], json.dumps(ground_truth["config"], sort_keys=True))
    try:
        score = sealed(partial(score_answer, task, answer, ground_truth), cpu_s=_CPU_S)
    except TooSlow:
        return wrong
    # Some formulas of the package leave these bounds if an answer is far off.
    return {"score": score, "acc": score >= 1, "pred": answer} if 0 <= score <= 1 else wrong


@lru_cache(64)
def _open_task(name: str, config: str) -> Any:
    if name in REFUSED:
        raise ValueError(f"env.task={name} {WHY_REFUSED}")
    settings = with_enums(from_json(json.loads(config)), DATASETS[name][1])
    return create_dataset(name, **settings, seed=0, size=1)


def score_answer(task: Any, answer: str, truth: Truth) -> float:
    """Returns the score of an answer without its tags, by our scorer of a task or the package's."""
    score = _OWN_SCORERS.get(truth["task"], task.score_answer)
    return float(score(answer, from_json(truth)))


def _numbers_game(answer: str, truth: Truth, *, readable: float, unreadable: float) -> float:
    """Scores with Countdown's exact parser: the given numbers, each once."""
    metadata = truth["metadata"]
    verdict = score_response(
        f"<answer>{answer}</answer>", metadata["numbers"], metadata.get("target", 24)
    ).verdict
    if verdict == "correct":
        return 1.0
    return readable if verdict in ("wrong_value", "wrong_numbers") else unreadable


def _listed(
    answer: str,
    truth: Truth,
    *,
    credit: float,
    write: Callable[[Any], str],
    right: Callable[[Truth], Collection[str]] = lambda truth: (truth["answer"].strip(),),
) -> float:
    """Scores a text, or with less credit a Python list of its parts."""
    if answer in right(truth):
        return 1.0
    return credit if write(ast.literal_eval(answer)) in right(truth) else 0.0


def _lines(rows: Any) -> str:
    return "\n".join(" ".join(str(cell) for cell in row) for row in rows)


def _number_sorting(answer: str, truth: Truth) -> float:
    read = json.loads(answer.replace("'", '"'))
    if not isinstance(read, list):
        return 0.0
    numbers = [float(number) for number in read]
    right = [float(number) for number in ast.literal_eval(truth["answer"])]
    is_sorted = numbers == sorted(numbers, reverse=truth["metadata"]["direction"] != "ascending")
    return float(is_sorted and all(abs(a - b) <= 1 for a, b in zip(numbers, right, strict=True)))


_OWN_SCORERS: Final[Mapping[str, Callable[[str, Truth], float]]] = {
    "countdown": partial(_numbers_game, readable=0.05, unreadable=0.01),
    "puzzle24": partial(_numbers_game, readable=0.01, unreadable=0.01),
    "string_insertion": partial(_listed, credit=0.1, write="".join),
    "spiral_matrix": partial(_listed, credit=0.1, write=lambda items: " ".join(map(str, items))),
    "binary_matrix": partial(_listed, credit=0.1, write=_lines),
    "n_queens": partial(
        _listed, credit=0.5, write=_lines, right=lambda truth: truth["metadata"]["valid_answers"]
    ),
    "bitwise_arithmetic": lambda answer, truth: int(answer, 0) == int(truth["answer"], 0),
    "number_sorting": _number_sorting,
    # The package takes any answer at all, since any text counts as true.
    "game_of_life_halting": lambda answer, truth: answer.casefold() == truth["answer"].casefold(),
}
"""By task: (answer, truth) -> score, or what a parser raises, which scores 0."""
