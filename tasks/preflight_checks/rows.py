"""Preflight's look at the rows: how many are left to train on, and whether their texts fit.

Not here: what a row must be (`sql/checks`), which `validate` checks in the data set that is made.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rl_core.config.run import RunConfig
from rl_core.data.dataset import NO_PROBLEMS, dataset_folder
from rl_core.data.gguf_source import local_folder
from rl_core.data.modelscope_source import find_model_here
from rl_core.data.readers import is_hub_name
from rl_core.data.user_files import OwnRows, read_own_rows
from rl_core.envs.rows import JSON_STYLE, Row, shown_truth
from rl_core.envs.text_env import TextEnv
from rl_core.system.words import cut
from tasks.preflight_checks import Finding, fatal, ok, warning

_MOST_ROWS: Final = 20_000  # of the user's, read in some seconds
_MOST_MEASURED: Final = 4_000  # prompts, those of most characters
_ANSWERS: Final = 32  # problems whose shortest right response is measured
_NO_TEXT_IS_LONGER: Final = 512  # tokens: a response limit from which on no answer is measured
_TEST_SHARE: Final = 5  # a test split of a fifth, if the rows are too few for the one that is set
_THINKS: Final = 4  # times the shortest right response: what is suggested, to leave room to think
_SHOWN: Final = 80  # characters of a response
_FORMS: Final = {
    "<answer>": "<answer> {} </answer>",
    "####": "#### {}",
    "\\boxed": "\\boxed{{}}",
    "answer is": "The answer is {}",
    "": "{}",
}
"""Of each form of an answer: what a prompt says that asks for it, and the form."""
_Problem = tuple[str, dict[str, int]]
"""What is wrong, and the settings that mend it."""


def row_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what would stop a run in its rows, with all the settings to change in one line."""
    own_rows = None
    data = config.data
    if data.train_files:
        if any(is_hub_name(name) for name in (*data.train_files, *data.test_files)):
            return  # they are not here yet
        try:
            own_rows = read_own_rows(config.env, data, most=_MOST_ROWS)
        except ValueError as error:
            yield fatal("rows", str(error))
            return
    stops = [] if own_rows is None else list(_stops(config, own_rows))
    problems = [*stops, *_holds_no_answer(config, [] if own_rows is None else own_rows.rows)]
    text = "; ".join(message for message, _ in problems)
    if own_rows is not None:
        text = f"{own_rows} of data.train_files{f': {text}' if text else ''}"
    if problems:
        sizes = (size for _, sizes in problems for size in sizes.items())
        overrides = " ".join(f"{key}={value}" for key, value in sizes)
        yield (fatal if stops else warning)("rows", text, f"set {overrides}", overrides)
    elif own_rows is not None:
        yield ok("rows", text)


def _stops(config: RunConfig, own_rows: OwnRows) -> Iterator[_Problem]:
    """Yields why no step could be filled, or why the data set's checks would refuse the prompts."""
    if own_rows.num_train < (batch := config.data.train_batch_size):
        yield f"no step of data.train_batch_size={batch} could be filled", _sizes(config, own_rows)
    tokens = _prompt_tokens(config, own_rows.rows)
    longest = max(tokens, default=0)
    limit = config.data.max_prompt_length
    if longest > limit:
        yield (
            f"{sum(count > limit for count in tokens):,} of {len(tokens):,} prompts are longer "
            f"than data.max_prompt_length={limit}: they take {min(tokens)} to {longest} tokens",
            {"data.max_prompt_length": longest},
        )


def _sizes(config: RunConfig, own_rows: OwnRows) -> dict[str, int]:
    """Returns the sizes with which so few rows make at least one step."""
    mini = config.actor.mini_batch_size
    changes: dict[str, int] = {}
    num_train = own_rows.num_train
    if own_rows.cuts_tests:
        num_tests = min(own_rows.num_test, max(1, own_rows.num_distinct // _TEST_SHARE))
        num_train = own_rows.num_distinct - num_tests
        if num_tests != own_rows.num_test:
            changes["data.test_size"] = num_tests
    if num_train < config.data.train_batch_size:
        smaller = num_train // mini * mini or max(num_train, 1)
        changes["data.train_batch_size"] = smaller
        if smaller % mini:
            changes["actor.mini_batch_size"] = smaller
    return changes


def _tokenizer(config: RunConfig) -> Any:
    """Returns the model's tokenizer; None if the model is not here, or another check refuses it."""
    if config.model.path is None:
        return None
    from rl_core.data.prompts import load_tokenizer  # transformers takes seconds

    folder = local_folder(config.model.path, config.storage.root)
    here = folder if folder.is_dir() else find_model_here(config.model.path)
    with suppress(OSError, ValueError):
        return here and load_tokenizer(str(here))
    return None


def _prompt_tokens(config: RunConfig, rows: Sequence[Row]) -> Sequence[int]:
    """Returns the tokens of the prompts with most characters; none without a tokenizer."""
    if (tokenizer := _tokenizer(config)) is None:
        return []
    from rl_core.data.prompts import count_tokens

    prompts = [row.prompt for row in rows]
    prompts.sort(key=lambda prompt: -sum(len(message["content"]) for message in prompt))
    with suppress(ValueError):  # of the template: `validate` names the row
        chat = config.env.chat_template
        return count_tokens(prompts[:_MOST_MEASURED], tokenizer, chat_template=chat)
    return []


def _holds_no_answer(config: RunConfig, users_rows: Sequence[Row]) -> Iterator[_Problem]:
    """Yields the shortest right response that is known, if it is longer than a response may be."""
    limit = config.data.max_response_length
    if limit >= _NO_TEXT_IS_LONGER:
        return
    rows = users_rows[:_ANSWERS] or _some_rows(config.env)
    responses = [text for row in rows if (text := _right_response(config.env, row)) is not None]
    # A token is at least a byte, so what has no more bytes fits.
    if not responses or min(len(text.encode()) for text in responses) < limit:
        return
    if (lengths := response_tokens(config, responses)) is None:
        return
    length, shortest = min(zip(lengths, responses, strict=True))
    if length > limit:
        yield (
            f"no answer can be right: data.max_response_length={limit} tokens do not hold the form "
            f"that the prompt asks for: {cut(shortest, _SHOWN)!r} and its end take {length}",
            {"data.max_response_length": 2 ** math.ceil(math.log2(_THINKS * length))},
        )


def response_tokens(config: RunConfig, responses: Sequence[str]) -> list[int] | None:
    """Returns the tokens of each response and its end; None if the model is not here."""
    if (tokenizer := _tokenizer(config)) is None:
        return None
    return [len(tokenizer.encode(text, add_special_tokens=False)) + 1 for text in responses]


def _some_rows(env: TextEnv) -> Sequence[Row]:
    """Returns some problems of an env that makes its own; none if it cannot."""
    with suppress(Exception):  # an env's own code: what is wrong with it, the data set's stage says
        if env.rows.source(env) is None and env.makes_problems():
            return rows_of(env.rows.make(env, train_size=_ANSWERS, test_size=1, seed=0)["train"])
    return []


def made_problems(config: RunConfig, *, count: int) -> Mapping[str, pa.Table]:
    """Returns `count` problems of each split that the env makes now; ValueError: it makes none."""
    env = config.env
    if not env.makes_problems():
        raise ValueError(NO_PROBLEMS.format(name=env.name))
    if env.rows.source(env) is not None:
        folder = dataset_folder(config)
        raise ValueError(f"{folder} is not there: countdown-train generate makes it")
    env.rows.refuse(env)
    return env.rows.make(env, train_size=count, test_size=count, seed=config.data.seed)


def rows_of(table: pa.Table) -> list[Row]:
    """Returns the rows of a data set's split."""
    rows: list[Row] = []
    for index, problem in enumerate(table.to_pylist()):
        truth = problem["reward_model"]["ground_truth"]
        is_json = problem["reward_model"]["style"] == JSON_STYLE
        extra = problem["extra_info"]
        rows.append(
            Row(
                (index,),
                problem["prompt"],
                json.loads(truth) if is_json else truth,
                problem["data_source"],
                extra["solution"],
                num_solutions=extra["num_solutions"],
                extra_info=extra.get("own") or "",
            )
        )
    return rows


@dataclass(frozen=True)
class RightResponse:
    """A short response that gives the right answer."""

    mark: str
    """What a prompt has that asks for this form; empty for the plain answer."""
    template: str
    """The response with `{}` in the place of the answer."""
    answer: str

    def with_answer(self, answer: str) -> str:
        """Returns the response with another answer."""
        return self.template.replace("{}", answer)

    def __str__(self) -> str:
        return self.with_answer(self.answer)


def right_responses(env: TextEnv, row: Row) -> Iterator[RightResponse]:
    """Yields short right responses: those in the form that the prompt asks for come first.

    The shortest work that can be shown in tags is the answer.
    """
    question = " ".join(message["content"] for message in row.prompt)
    work = "{} </think> " if "<think>" in question else ""
    if work and not question.rstrip().endswith("<think>"):
        work = f"<think> {work}"
    solved = row if row.solution else env.rows.solve([row])[0]
    answers = [shown_truth(row.truth), solved.solution if solved else ""]
    if row.truth is not None and answers[0].startswith(("{", "[")):
        answers.reverse()  # a truth of several values is no answer
    forms = dict(_FORMS)
    mark = next(mark for mark in forms if mark in question)
    for answer in filter(None, dict.fromkeys(answers)):
        for form in (mark, *(other for other in forms if other != mark)):
            yield RightResponse(form, f"{work}{forms[form]}", answer)


def _right_response(env: TextEnv, row: Row) -> str | None:
    """Returns a short response that is right, in the form that the prompt asks for; None: unknown.

    A reward function of the user is not called here.
    """
    with suppress(Exception):  # as above
        for right in right_responses(env, row):
            if env.reward or env.score(str(right), row.truth).verdict == "correct":
                return str(right)
    return None
