import asyncio
from functools import partial

import pytest

from rl_core.rewards.by_name import caller_of

QUESTION = {
    "solution_str": "Oslo",
    "ground_truth": "Rome",
    "data_source": "cities",
    "prompt": "Where?",
    "extra_info": {"index": 3, "level": "hard", "answer": "a column of the same name"},
}


def ours(response, answer):
    return response, answer


def with_columns(response, *, level, index=0):
    return response, level, index


def with_everything(response, **row):
    assert row.keys() == {"answer", "prompt", "data_source", "extra_info", "index", "level"}
    return response, row["answer"], row["prompt"], row["level"], row["data_source"]


def of_verl(data_source, solution_str, ground_truth, extra_info=None):
    return data_source, solution_str, ground_truth, extra_info["index"]


def of_verl_in_lists(data_sources, solution_strs, ground_truths, extra_infos=None):
    return [(data_sources[0], solution_strs[0], ground_truths[0], extra_infos[0]["index"])]


def of_trl(completions, prompts, level, **kwargs):
    return [(c, p, hard, kwargs["answer"]) for c, p, hard in zip(completions, prompts, level)]  # noqa: B905


def by_position(solution_str, ground_truth, /):
    return solution_str, ground_truth


def of_verl_whatever_it_gives(**keywords):
    return keywords.keys()


def of_verl_with_more(solution_str, ground_truth, **keywords):
    return solution_str, ground_truth, keywords.keys()


class Called:
    def __call__(self, response, truth):
        return response, truth


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        (ours, ("Oslo", "Rome")),
        (with_columns, ("Oslo", "hard", 3)),
        (with_everything, ("Oslo", "Rome", "Where?", "hard", "cities")),
        (of_verl, ("cities", "Oslo", "Rome", 3)),
        (of_verl_in_lists, ("cities", "Oslo", "Rome", 3)),
        (of_trl, ("Oslo", "Where?", "hard", ["Rome"])),
        (by_position, ("Oslo", "Rome")),
        (
            of_verl_whatever_it_gives,
            {"data_source", "solution_str", "ground_truth", "extra_info"},
        ),
        (of_verl_with_more, ("Oslo", "Rome", {"data_source", "extra_info"})),
        (Called(), ("Oslo", "Rome")),
        (lambda completion: completion, "Oslo"),
    ],
)
def test_a_function_gets_what_it_names(function, reward):
    assert caller_of(function)(QUESTION) == reward


async def waits(response):
    return response


async def of_lists(completions, **columns):
    return completions


def test_an_async_function_is_awaited():
    for function in (waits, of_lists, partial(waits)):
        assert asyncio.run(caller_of(function)(QUESTION)) == "Oslo"


async def yields(response):
    yield 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (yields, "it yields"),
        (lambda text, target: 0.0, "it takes text, target, and no response: write def NAME"),
        (lambda: 0.0, "it takes nothing, and no response"),
    ],
)
def test_what_can_never_score_is_refused_when_it_is_loaded(function, message):
    with pytest.raises(ValueError, match=r"^it ") as caught:
        caller_of(function)
    assert message in str(caught.value)


def test_a_name_that_no_row_has_is_refused_with_those_that_there_are():
    call = caller_of(lambda response, colour: 0.0)
    with pytest.raises(
        ValueError, match=r"it takes 'colour', which the row does not have"
    ) as caught:
        call(QUESTION)
    assert "level" in str(caught.value)


def test_a_list_of_another_length_is_no_reward():
    with pytest.raises(ValueError, match="too many values"):
        caller_of(lambda completions: [1.0, 0.0])(QUESTION)
