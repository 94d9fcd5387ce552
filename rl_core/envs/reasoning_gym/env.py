"""reasoning-gym's record: all that the rest of the system knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rl_core.envs.reasoning_gym.settings import DATA_SOURCE, ReasoningGymConfig
from rl_core.envs.record import Checks, Env, Question, Value
from rl_core.envs.text_problems import render_messages, score_text
from rl_core.envs.user_rows import OwnProblem, Record
from rl_core.types import Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa


def _score(env: ReasoningGymConfig, response: str, truth: Any) -> ScoredText:
    """Scores word for word: what tells a strict reading of a response from a lenient one."""
    return score_text(
        response,
        truth["answer"],
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )


def _generate(
    env: ReasoningGymConfig, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    from rl_core.envs.reasoning_gym.problems import make_tables

    return make_tables(env, train_size=train_size, test_size=test_size, seed=seed)


def _read_row(env: ReasoningGymConfig, record: Record) -> NoReturn:
    raise ValueError("env=reasoning_gym makes its own problems: env=custom takes rows of yours")


def _user_table(split: str, problems: Sequence[OwnProblem]) -> NoReturn:
    raise AssertionError("no row was read")


def _check_parameters(
    env: ReasoningGymConfig, /, *, train_size: int, test_size: int
) -> dict[str, Value]:
    return {"train_size": train_size, "test_size": test_size}


def _read_question(env: ReasoningGymConfig, text: str, answer: str | None) -> Question:
    asked = tuple(render_messages(env.prompt_template, text))
    return Question(text, Problem(0, DATA_SOURCE, asked, {}, 0), is_scored=False)


def _show(problem: Problem) -> str:
    return f"{problem.ground_truth['question']} (the answer is {problem.ground_truth['answer']})"


REASONING_GYM: Final = Env(
    settings=ReasoningGymConfig,
    title="reasoning-gym",
    data_source=DATA_SOURCE,
    answer_from=("last_line", "anywhere"),
    score=_score,
    generate=_generate,
    made_by="reasoning-gym",
    own_columns=(),
    read_row=_read_row,
    user_table=_user_table,
    checks=Checks(
        columns="text_columns.sql",
        rows=(
            "text_no_nulls.sql",
            "text_prompt.sql",
            "text_unique.sql",
            "text_splits_disjoint.sql",
            "row_count.sql",
            "reasoning_gym_truth.sql",
        ),
        parameters=_check_parameters,
    ),
    read_question=_read_question,
    show=_show,
)
