"""Questions about numbers: made, kept apart between the splits, read strictly and leniently."""

import re
import time
from pathlib import Path

import pytest
import yaml

from rl_core.config.run import DataConfig
from rl_core.data.dataset import difficulty_classes, read_problems, write_dataset
from rl_core.envs.number_questions import NumberQuestions
from rl_core.types import Problem

STRICT, LENIENT = (NumberQuestions(answer_from=how) for how in ("strict", "lenient"))
READINGS = yaml.safe_load(Path(__file__).with_name("number_questions.yaml").read_text())


def made(folder: Path, *, train: int = 300, test: int = 50, seed: int = 0) -> list[list[Problem]]:
    data = DataConfig(train_size=train, test_size=test, seed=seed)
    write_dataset(NumberQuestions(), data, folder)
    return [read_problems(folder / f"{split}.parquet") for split in ("train", "test")]


def test_questions_have_their_answers_and_no_set_of_numbers_is_asked_twice(tmp_path):
    answers = {"largest": max, "smallest": min, "times": lambda numbers: numbers[0] * numbers[1]}
    asked = set()
    for problem in (problem for split in made(tmp_path) for problem in split):
        kind = problem.data_source.partition("/")[2]
        numbers = [int(n) for n in re.findall("[0-9]+", problem.messages[0]["content"])]
        assert problem.ground_truth == str(answers[kind](numbers))
        assert 2 <= len(numbers) <= 5
        asked.add((kind, *sorted(numbers)))
    assert len(asked) == 350


def test_the_curriculum_tells_lists_by_length_and_products_by_digits(tmp_path):
    made(tmp_path)
    classes = set(difficulty_classes(NumberQuestions(), tmp_path / "train.parquet"))
    assert {f"number_questions/largest {n} numbers, 2 digits" for n in (3, 4, 5)} <= classes
    assert {f"number_questions/times 2 numbers, {n} digits" for n in (2, 3)} <= classes


@pytest.mark.parametrize(("response", "strict", "lenient"), READINGS)
def test_a_response_is_read_strictly_and_leniently(response, strict, lenient):
    assert STRICT.score(response, "46").verdict == strict
    assert LENIENT.score(response, "46").verdict == lenient


@pytest.mark.parametrize("text", ["4", "-", "4.", "1 ", "\0", "4.5.6-"])
def test_any_text_has_a_score_within_a_second(text):
    start = time.process_time()
    scored = STRICT.score(text * 100_000, "46")
    assert scored.verdict != "correct"
    assert len(scored.answer or "") <= 100
    assert time.process_time() - start < 1
