"""reasoning-gym's record: all that the rest of the system knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rl_core.envs.reasoning_gym.settings import DATA_SOURCE, ReasoningGymConfig
from rl_core.envs.record import Question
from rl_core.envs.text_problems import render_messages
from rl_core.types import Problem

if TYPE_CHECKING:
    import pyarrow as pa


def _generate(
    env: ReasoningGymConfig, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    from rl_core.envs.reasoning_gym.problems import make_tables

    return make_tables(env, train_size=train_size, test_size=test_size, seed=seed)


def _read_question(env: ReasoningGymConfig, text: str, answer: str | None) -> Question:
    asked = tuple(render_messages(env.prompt_template, text))
    return Question(text, Problem(0, DATA_SOURCE, asked, {}, 0), is_scored=False)


def _show(problem: Problem) -> str:
    return f"{problem.ground_truth['question']} (the answer is {problem.ground_truth['answer']})"


REASONING_GYM: Final = replace(
    ReasoningGymConfig.record(),
    title="reasoning-gym",
    answer_from=("last_line", "anywhere"),
    answer_mark="<answer>",
    generate=_generate,
    made_by="reasoning-gym",
    read_question=_read_question,
    show=_show,
)
