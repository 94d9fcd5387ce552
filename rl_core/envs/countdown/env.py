"""Countdown's record: all that the rest of the system knows of it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rl_core.envs.countdown.calculator import CALL_CLOSE, answer_call
from rl_core.envs.countdown.prompts import (
    DATA_SOURCE,
    message_templates,
    render_messages,
    render_prompt,
)
from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.search_traces import FEWEST, MOST
from rl_core.envs.countdown.settings import CountdownConfig
from rl_core.envs.countdown.user_rows import read_row, user_table, with_solutions
from rl_core.envs.record import (
    Answers,
    Checks,
    Env,
    EnvTurn,
    HomeMadeModel,
    LaunchScripts,
    Question,
    Value,
)
from rl_core.envs.sft_examples import SftExamples
from rl_core.envs.user_rows import Record
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

_PUZZLE: Final = re.compile(r"[\s\d,;\[\](){}=:>→-]*")
_FEWEST_NUMBERS: Final = 2
_MOST_DIGITS: Final = 18
"""Of a number of a person's puzzle: what fits a column of whole numbers."""


def _score(env: CountdownConfig, response: str, truth: Mapping[str, Any]) -> ScoredText:
    scored = score_response(
        response,
        truth["numbers"],
        truth["target"],
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )
    value = None if scored.value is None else str(scored.value)
    return ScoredText(scored.score, scored.verdict, scored.answer, value)


def _generate(
    env: CountdownConfig, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    from rl_core.envs.countdown.table import generated_tables

    return generated_tables(env, train_size=train_size, test_size=test_size, seed=seed)


def _check_parameters(
    env: CountdownConfig, /, *, train_size: int, test_size: int
) -> dict[str, Value]:
    ranges = env.model_dump(
        include={
            f"{end}_{what}" for end in ("min", "max") for what in ("operands", "number", "target")
        }
    )
    *system, question = message_templates(env.prompt_template)
    before, _, rest = question["content"].partition("{numbers}")
    between, _, after = rest.partition("{target}")
    return {
        **ranges,
        "data_source": DATA_SOURCE,
        "train_size": train_size,
        "test_size": test_size,
        "system": system[0]["content"] if system else "none",
        "before": before,
        "between": between,
        "after": after,
    }


def _check_tables(
    splits: Mapping[str, pa.Table],
) -> tuple[dict[str, pa.Table], dict[str, str]]:
    from rl_core.envs.countdown.check_tables import recounts_table, solutions_table

    solutions = solutions_table(splits)
    recounts = recounts_table(solutions)
    counted = f" (a sample: {recounts.num_rows:,} of {solutions.num_rows:,} problems)"
    return {"solutions": solutions, "recounts": recounts}, {"countdown_difficulty": counted}


def _prompt_of_numbers(env: CountdownConfig, numbers: Sequence[int], target: int) -> list[Message]:
    return render_messages(env.prompt_template, numbers, target)


def _read_question(env: CountdownConfig, text: str, answer: str | None) -> Question:
    """Reads numbers and, last, the target: `3 14 7 = 35`."""
    words = re.findall(r"\d+", text)
    if longest := max((word for word in words if len(word) > _MOST_DIGITS), default=None, key=len):
        raise ValueError(f"{longest[:20]}... has {len(longest)} digits: at most {_MOST_DIGITS}")
    numbers = [int(word) for word in words]
    if not _PUZZLE.fullmatch(text) or len(numbers) <= _FEWEST_NUMBERS:
        raise ValueError(
            f"{text!r} is no puzzle: write numbers and, last, the target, as '3 14 7 = 35' "
            "(env=gsm8k takes word problems)"
        )
    if answer is not None:
        raise ValueError("a puzzle's answer is found by its rule: answer= is for env=gsm8k")
    *numbers, target = numbers
    messages = render_messages(env.prompt_template, numbers, target)
    truth = {"numbers": numbers, "target": target}
    problem = Problem(0, DATA_SOURCE, tuple(messages), truth, 0)
    return Question(_show(problem), problem, is_scored=True)


def _show(problem: Problem) -> str:
    truth: Any = problem.ground_truth
    return f"{', '.join(map(str, truth['numbers']))} = {truth['target']}"


def _is_taught(env: CountdownConfig) -> bool:
    return env.min_operands >= FEWEST and env.max_operands <= MOST


def _examples(
    env: CountdownConfig,
    /,
    *,
    give_up_prob: float,
    train: Sequence[tuple[Problem, str]],
    test: Sequence[tuple[Problem, str]],
) -> SftExamples:
    from rl_core.envs.countdown.sft_examples import SearchExamples

    return SearchExamples(
        give_up_prob,
        prompts=[problem.messages[0]["content"] for problem, _ in train],
        problems=[_numbers_and_target(problem) for problem, _ in train],
        holdout=[_numbers_and_target(problem) for problem, _ in test],
        render_prompt=partial(render_prompt, env.prompt_template),
        calls=env.max_turns > 1,
    )


def _answer(env: CountdownConfig, truth: Mapping[str, Any], response: str) -> EnvTurn | None:
    said = answer_call(response)
    return None if said is None else EnvTurn(said)


def _numbers_and_target(problem: Problem) -> tuple[tuple[int, ...], int]:
    truth: Any = problem.ground_truth
    return tuple(truth["numbers"]), truth["target"]


def _write_trace(
    env: CountdownConfig, problem: Problem, solution: str, rng: random.Random, give_up_prob: float
) -> str:
    from rl_core.envs.countdown.worded_traces import write_worded_trace

    numbers, target = _numbers_and_target(problem)
    trace = write_worded_trace(numbers, target, solution, rng=rng, give_up_prob=give_up_prob)
    return f"<think>{trace}" if env.prompt_template == "chat" else trace


def _difficulty(truth: Any, solution: str) -> str:
    """Returns how many numbers there are, and the operators of a solution in no order."""
    return f"{len(truth['numbers'])} {''.join(sorted(c for c in solution if c in '+-*/'))}"


def _imported_settings(row: Record, model: str) -> dict[str, Any]:
    """Returns how prompts reach the model: raw as TinyZero writes them, else by a chat template."""
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = str(prompt[0].get("content"))
        if text.startswith("<|im_start|>"):
            return {"env.prompt_template": "qwen-instruct"}
        is_raw = len(prompt) == 1 and re.search(r"(^|\n)Assistant:", text)
        return {} if is_raw else {"env.prompt_template": "chat"}
    return {"env.prompt_template": "qwen-instruct"} if "instruct" in model else {}


COUNTDOWN: Final = Env(
    settings=CountdownConfig,
    title="Countdown",
    data_source=DATA_SOURCE,
    answer_from=("last_line", "anywhere"),
    score=_score,
    generate=_generate,
    answers=Answers(stop=(CALL_CLOSE,), answer=_answer),
    own_columns=("nums", "numbers", "target"),
    read_row=read_row,
    with_solutions=with_solutions,
    user_table=user_table,
    checks=Checks(
        columns="countdown_columns.sql",
        rows=(
            "countdown_difficulty.sql",
            "countdown_ground_truth.sql",
            "labels.sql",
            "countdown_no_nulls.sql",
            "countdown_number_range.sql",
            "countdown_operand_count.sql",
            "countdown_prompt.sql",
            "row_count.sql",
            "countdown_solution.sql",
            "countdown_splits_disjoint.sql",
            "countdown_target_range.sql",
            "countdown_unique.sql",
        ),
        of_generated_rows=(
            "countdown_number_range",
            "countdown_operand_count",
            "row_count",
            "countdown_target_range",
        ),
        of_templates=("countdown_prompt",),
        parameters=_check_parameters,
        tables=_check_tables,
    ),
    prompt_of_numbers=_prompt_of_numbers,
    read_question=_read_question,
    show=_show,
    home_made=HomeMadeModel(
        is_taught=_is_taught,
        what=f"Countdown with {FEWEST} or {MOST} numbers",
        choose=f"env=countdown env.min_operands={FEWEST} env.max_operands={MOST}",
        examples=_examples,
    ),
    write_trace=_write_trace,
    traces_give_up=True,
    difficulty=_difficulty,
    weak_models=("0.5b",),
    launch_scripts=LaunchScripts(
        words=("countdown", "tinyzero"),
        has_columns=lambda row: bool(row.get("nums")),
        has_truth=lambda truth: isinstance(truth, dict) and {"target", "numbers"} <= {*truth},
        made="the run makes puzzles of its own; data.train_files=FILE names yours",
        settings=_imported_settings,
    ),
)
