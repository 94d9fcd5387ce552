"""The package's scoring of a response, as a reward function (data path stage 4).

Runs in reward workers. Nothing of what a model wrote is executed: scorers that would do so are
replaced, and each response is scored in a sealed process, which ends with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final

from rl_core.envs.reasoning_gym.env import INSTALL
from rl_core.envs.reasoning_gym.own_scorers import (
    GENERATORS,
    is_absurd,
    load_sympy,
    score_answer,
)
from rl_core.envs.reasoning_gym.problems import from_json, with_enums
from rl_core.envs.text_problems import find_answer
from rl_core.system.sealed import TooSlow, sealed

try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(INSTALL) from error

LONGEST_ANSWER: Final = 10_000
"""Characters; a longer answer is wrong."""
_CPU_S: Final = 1.0
"""Of one response: honest answers take milliseconds, a hard integral a few tenths."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Mapping[str, Any], extra_info: Any = None
) -> dict[str, Any]:
    """Returns the package's score of the answer in tags, from 0 to 1; 1 alone is correct.

    Args:
        data_source: of the row.
        solution_str: the response.
        ground_truth: of `problems`: task, settings, question, answer and metadata.
        extra_info: of the row.

    Raises:
        NotSealed: scoring it would have done more than compute.
    """
    answer = find_answer(solution_str, "anywhere").strip()
    if not answer:
        return {"score": 0.0, "acc": False, "pred": None}
    wrong = {"score": 0.0, "acc": False, "pred": answer}
    if len(answer) > LONGEST_ANSWER or is_absurd(answer, ground_truth):
        return wrong
    task = _open_task(ground_truth["task"], json.dumps(ground_truth["config"], sort_keys=True))
    try:
        score = sealed(
            partial(score_answer, task, answer, ground_truth), cpu_s=_CPU_S, generators=GENERATORS
        )
    except TooSlow:
        return wrong
    if not 0 <= score <= 1:  # some formulas of theirs leave the range where an answer is far off
        return wrong
    return {"score": score, "acc": score >= 1, "pred": answer}


@lru_cache(64)
def _open_task(name: str, config: str) -> Any:
    if name.endswith(("_integration", "_multiplication")):
        load_sympy()
    settings = with_enums(from_json(json.loads(config)), DATASETS[name][1])
    return create_dataset(name, **settings, seed=0, size=1)
