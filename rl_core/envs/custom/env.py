"""The record of custom rows: all that the rest of the system knows of them."""

from __future__ import annotations

from typing import Any, Final

from rl_core.envs.custom.settings import CustomConfig
from rl_core.envs.custom.user_rows import COLUMNS, DATA_SOURCE, read_row, user_table
from rl_core.envs.record import Checks, Env, LaunchScripts, Question, Value
from rl_core.envs.text_problems import (
    question_in,
    render_messages,
    score_text,
    text_of_truth,
)
from rl_core.types import Problem, ScoredText


def _score(env: CustomConfig, response: str, truth: Any) -> ScoredText:
    return score_text(
        response,
        text_of_truth(truth),
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )


def _check_parameters(env: CustomConfig, /, *, train_size: int, test_size: int) -> dict[str, Value]:
    return {"has_reward": env.reward is not None}


def _read_question(env: CustomConfig, text: str, answer: str | None) -> Question:
    asked = tuple(render_messages(env.prompt_template, text))
    problem = Problem(0, DATA_SOURCE, asked, answer or "", 0)
    return Question(text, problem, is_scored=answer is not None)


def _show(problem: Problem) -> str:
    truth = text_of_truth(problem.ground_truth)
    return f"{question_in(problem.messages[-1]['content'])} (the answer is {truth})"


CUSTOM: Final = Env(
    settings=CustomConfig,
    title="your own rows",
    data_source=DATA_SOURCE,
    answer_from=("last_line", "anywhere"),
    score=_score,
    generate=None,
    own_columns=COLUMNS,
    read_row=read_row,
    user_table=user_table,
    checks=Checks(
        columns="text_columns.sql",
        rows=(
            "text_no_nulls.sql",
            "text_prompt.sql",
            "text_unique.sql",
            "text_splits_disjoint.sql",
            "custom_ground_truth.sql",
        ),
        parameters=_check_parameters,
    ),
    read_question=_read_question,
    show=_show,
    launch_scripts=LaunchScripts(
        words=(),
        has_columns=lambda row: False,
        has_truth=lambda truth: truth is not None,
        made="data.train_files=FILE names rows of yours",
    ),
)
