"""An env of one class: what it leaves out is filled in, and what it yields twice is asked once."""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import read_problems, write_dataset
from rl_core.data.user_files import read_rows
from rl_core.envs import ENVS, find_env
from rl_core.envs.text_env import EnvTurn, Rows, TextEnv, TextProblem
from rl_core.types import Problem, ScoredText


class Sums(TextEnv):
    """Sums of two digits."""

    largest: int = Field(9, ge=1)
    """Of the numbers that are added."""

    def problems(self, rng: random.Random) -> Iterator[TextProblem]:
        while True:
            a, b = rng.randint(0, self.largest), rng.randint(0, self.largest)
            yield TextProblem(f"What is {a} + {b}?", {"sum": a + b}, kind="even" if a else "")

    def score(self, response: str, truth: Any) -> ScoredText:
        said = response.strip() or None
        return self.scored(said, right=said == str(truth["sum"]))


class Guess(Sums):
    """Answers until the sum is said."""

    name: Literal["guess"] = "guess"

    def reply(self, response: str, truth: Any) -> EnvTurn | None:
        return None if response.endswith(str(truth["sum"])) else EnvTurn(" no, ")


def made(env: TextEnv, folder: Path, train: int, test: int, seed: int = 0) -> list[list[Problem]]:
    ENVS.setdefault(env.name, type(env))
    write_dataset(env, DataConfig(train_size=train, test_size=test, seed=seed), folder)
    return [read_problems(folder / f"{split}.parquet") for split in ("train", "test")]


def test_a_class_is_named_as_it_is_found_and_a_name_of_its_own_is_kept():
    assert Sums().name == Sums.model_fields["name"].default == f"{__name__}:Sums"
    assert Guess().name == "guess"


def test_every_prompt_is_asked_once_over_both_splits_and_the_seed_chooses(tmp_path):
    train, test = made(Sums(), tmp_path / "a", 80, 20)
    asked = {problem.messages[0]["content"] for problem in (*train, *test)}
    assert asked == {f"What is {a} + {b}?" for a, b in itertools.product(range(10), repeat=2)}
    for problem in (*train, *test):
        a, b = (int(word.strip("?")) for word in problem.messages[0]["content"].split()[2::2])
        assert problem.ground_truth == {"sum": a + b}
        assert problem.data_source == (f"{__name__}:Sums/even" if a else f"{__name__}:Sums")
    assert made(Sums(), tmp_path / "b", 80, 20) == [train, test]
    assert made(Sums(), tmp_path / "c", 80, 20, seed=1) != [train, test]


def test_too_few_different_prompts_are_said(tmp_path):
    said = "has 100 different prompts: data.train_size=90 and data.test_size=11 ask for 101"
    with pytest.raises(ValueError, match=said):
        made(Sums(), tmp_path, 90, 11)
    assert not any(tmp_path.iterdir())


def test_an_answer_is_right_wrong_or_none():
    env = Sums(format_score=0.1, full_score=2.0)
    assert env.score("7", {"sum": 7}) == ScoredText(2.0, "correct", "7", "7")
    assert env.score("8", {"sum": 7}) == ScoredText(0.1, "wrong_value", "8", "8")
    assert env.score(" ", {"sum": 7}) == ScoredText(0.0, "no_answer", None)


def test_a_class_replies_only_if_it_says_how():
    with pytest.raises(ValidationError, match="answers no response, so it must be 1"):
        RunConfig(env=Sums(max_turns=2))
    assert RunConfig(env=Guess(max_turns=2)).env.max_turns == 2
    assert Guess().reply("6", {"sum": 7}) == EnvTurn(" no, ")
    assert Guess().reply("6 no, 7", {"sum": 7}) is None


def test_a_question_is_scored_if_its_answer_is_told():
    asked = Sums().read_question("What is 1 + 1?", None)
    assert (asked.shown, asked.is_scored) == ("What is 1 + 1?", False)
    assert Sums().read_question("What is 1 + 1?", "2").problem.ground_truth == "2"


class Half(TextEnv):
    """Scores, and asks nothing."""

    def score(self, response: str, truth: Any) -> ScoredText:
        return self.scored(response, right=True)


class OwnRows(Half):
    """Has no problems but the user's."""

    rows = Rows(read=lambda env, record: record)


def test_a_class_needs_problems_or_reads_those_of_the_user(tmp_path):
    with pytest.raises(ValueError, match="Half has no method `problems`"):
        find_env(f"{__name__}:Half")
    assert find_env(f"{__name__}:OwnRows") is OwnRows
    (file := tmp_path / "rows.jsonl").write_text('{"question": "?"}')
    with pytest.raises(ValueError, match="makes its own problems: env=custom takes rows of yours"):
        list(read_rows(Sums(), [file]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_args": {"tokenize": False}}, "env.chat_args.tokenize is set by this program"),
        ({"chat_args": {"x": float("nan")}}, "env.chat_args must hold JSON values"),
        ({"chat_args": {"x": 1}, "prompt_template": "base"}, "is for a chat template, which"),
    ],
)
def test_arguments_of_a_chat_template_that_cannot_count_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Sums(**settings)


def test_how_a_prompt_becomes_text_is_one_value():
    assert Sums(chat_args={"enable_thinking": False}).chat_template == {"enable_thinking": False}
    assert Sums().chat_template is True
    assert Sums(prompt_template="base").chat_template is False
