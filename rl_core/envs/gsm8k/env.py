"""GSM8K's record: all that the rest of the system knows of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rl_core.envs.gsm8k.prompts import DATA_SOURCE, render_messages
from rl_core.envs.gsm8k.scoring import extract_truth, is_number, score_response
from rl_core.envs.gsm8k.settings import Gsm8kConfig
from rl_core.envs.gsm8k.user_rows import read_row, read_source_row, user_table
from rl_core.envs.record import (
    Checks,
    Env,
    HomeMadeModel,
    LaunchScripts,
    Question,
    Source,
    Value,
)
from rl_core.envs.sft_examples import SftExamples
from rl_core.types import Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

_TRAIN_PROBLEMS: Final = 7_473
"""Of openai/gsm8k, config `main`."""


def _score(env: Gsm8kConfig, response: str, truth: str) -> ScoredText:
    return score_response(
        response,
        truth,
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )


def _generate(
    env: Gsm8kConfig, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    from rl_core.envs.gsm8k.table import toy_tables

    return toy_tables(env, train_size=train_size, test_size=test_size, seed=seed)


def _source_table(env: Gsm8kConfig, split: str, pairs: Sequence[tuple[str, str]]) -> pa.Table:
    from rl_core.envs.gsm8k.table import gsm8k_table

    return gsm8k_table(env, split, pairs)


def _check_parameters(env: Gsm8kConfig, /, *, train_size: int, test_size: int) -> dict[str, Value]:
    (message,) = render_messages(env.prompt_template, "{question}")
    before, _, after = message["content"].partition("{question}")
    return {"data_source": DATA_SOURCE, "before": before, "after": after}


def _read_question(env: Gsm8kConfig, text: str, answer: str | None) -> Question:
    known = "0" if answer is None else extract_truth(f"#### {answer}")
    asked = tuple(render_messages(env.prompt_template, text))
    return Question(text, Problem(0, DATA_SOURCE, asked, known, 0), is_scored=answer is not None)


def _show(problem: Problem) -> str:
    return f"{problem.messages[-1]['content']} (the answer is {problem.ground_truth})"


def _examples(
    env: Gsm8kConfig,
    /,
    *,
    give_up_prob: float,
    train: Sequence[tuple[Problem, str]],
    test: Sequence[tuple[Problem, str]],
) -> SftExamples:
    from rl_core.envs.gsm8k.sft_examples import SolutionExamples

    return SolutionExamples(give_up_prob, train=_prompted(train), test=_prompted(test))


def _prompted(pairs: Sequence[tuple[Problem, str]]) -> list[tuple[str, str]]:
    return [(problem.messages[0]["content"], solution) for problem, solution in pairs]


def _write_trace(
    env: Gsm8kConfig, problem: Problem, solution: str, rng: random.Random, give_up_prob: float
) -> str:
    from rl_core.envs.gsm8k.sft_examples import write_in_words

    return write_in_words(solution, thinks=env.prompt_template == "think")


GSM8K: Final = Env(
    settings=Gsm8kConfig,
    title="GSM8K",
    data_source=DATA_SOURCE,
    answer_from=("strict", "lenient"),
    answer_mark="####",
    score=_score,
    generate=_generate,
    source=Source(
        name=lambda env: env.source,
        num_problems=_TRAIN_PROBLEMS,
        columns=("question", "answer"),
        read_row=read_source_row,
        table=_source_table,
    ),
    own_columns=("question", "answer"),
    read_row=read_row,
    user_table=user_table,
    checks=Checks(
        columns="text_columns.sql",
        rows=(
            "gsm8k_ground_truth.sql",
            "labels.sql",
            "text_no_nulls.sql",
            "text_unique.sql",
            "text_splits_disjoint.sql",
            "gsm8k_prompt.sql",
        ),
        of_templates=("gsm8k_prompt",),
        parameters=_check_parameters,
    ),
    read_question=_read_question,
    show=_show,
    home_made=HomeMadeModel(
        is_taught=lambda env: env.is_generated,
        what="toy word problems",
        choose="env=gsm8k env.source=toy env.prompt_template=think",
        examples=_examples,
    ),
    write_trace=_write_trace,
    difficulty=lambda truth, solution: f"{solution.count(chr(10))} steps",
    launch_scripts=LaunchScripts(
        words=("gsm8k",),
        has_columns=lambda row: bool(row.get("question")),
        has_truth=is_number,
        made="the run fetches openai/gsm8k; env.source=FOLDER, data.train_files=FILE name copies",
    ),
)
