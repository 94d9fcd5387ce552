"""The package's own scoring of a response, as a reward function (data path stage 4).

Runs in reward workers, with their limits: a scorer parses, and some evaluate, what a model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rl_core.envs.answer_tags import find_answer
from rl_core.envs.reasoning_gym.settings import INSTALL
from rl_core.envs.reasoning_gym.typed_json import from_json

try:
    from reasoning_gym.factory import create_dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(INSTALL) from error

LONGEST_ANSWER: Final = 10_000
"""Characters; a longer answer is wrong."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Mapping[str, Any], extra_info: Any = None
) -> dict[str, Any]:
    """Returns the package's score of the answer in tags, from 0 to 1; 1 alone is correct.

    Args:
        data_source: of the row.
        solution_str: the response.
        ground_truth: of `problems`: task, settings, question, answer and metadata.
        extra_info: of the row.
    """
    answer = find_answer(solution_str, "anywhere").strip()
    if not answer or len(answer) > LONGEST_ANSWER:
        return {"score": 0.0, "acc": False}
    task = _open_task(ground_truth["task"], json.dumps(ground_truth["config"], sort_keys=True))
    try:
        score = float(task.score_answer(answer, from_json(ground_truth)))
    except Exception:  # noqa: BLE001  # scorers raise what parsers of a model's words may raise
        score = 0.0
    return {"score": score, "acc": score >= 1, "pred": answer}


@lru_cache(64)
def _open_task(name: str, config: str) -> Any:
    return create_dataset(name, **json.loads(config), seed=0, size=1)
