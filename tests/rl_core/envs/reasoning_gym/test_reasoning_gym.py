"""Tasks of reasoning-gym: made, mixed, kept apart between the splits, and scored by themselves."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from flows.settings.compose import compose
from rl_core.config.run import DataConfig
from rl_core.data.dataset import dataset_name, is_ready, read_problems, write_dataset
from rl_core.envs.countdown import Countdown
from rl_core.envs.reasoning_gym import ReasoningGym
from rl_core.envs.reasoning_gym.truths import from_json, to_json
from rl_core.rewards.scoring import start_rewards
from rl_core.types import Problem

pytest.importorskip("reasoning_gym", reason="make env leaves it out without a C compiler")
from rl_core.envs.reasoning_gym.scoring import compute_score
from tests.support.programs import begun

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())
EVERY_TASK = """
import hashlib, warnings
warnings.simplefilter("ignore", SyntaxWarning)
from reasoning_gym.factory import DATASETS
from rl_core.envs.reasoning_gym import ReasoningGym
from rl_core.envs.reasoning_gym.truths import REFUSED
WITHOUT_ANSWERS = "boxnet composite graph_color propositional_logic rubiks_cube rush_hour".split()
SLOW = "futoshiki sokoban zebra_puzzles".split()
tasks = sorted({*DATASETS} - {*WITHOUT_ANSWERS, *SLOW, *REFUSED})
env = ReasoningGym(task=tasks)
rows = env.rows.make(env, train_size=5 * len(tasks), test_size=0, seed=3)
for row in rows["train"].to_pylist():
    print(row["data_source"], hashlib.md5(repr(row).encode()).hexdigest())
"""


def made(folder: Path, *, train: int = 30, test: int = 9, **env: Any) -> dict[str, list[Problem]]:
    data = DataConfig(train_size=train, test_size=test, seed=env.pop("seed", 0))
    write_dataset(ReasoningGym(**env), data, folder)
    return {split: read_problems(folder / f"{split}.parquet") for split in ("train", "test")}


def test_tasks_are_mixed_by_weight_and_no_question_is_in_both_splits(tmp_path):
    splits = made(tmp_path / "one", task="gcd:2, leg_counting:1")
    for split, counts in (("train", (20, 10)), ("test", (6, 3))):
        names = Counter(problem.data_source for problem in splits[split])
        gcds, legs = counts
        assert names == {"reasoning_gym/gcd": gcds, "reasoning_gym/leg_counting": legs}
    asked = [problem.messages[0]["content"] for both in splits.values() for problem in both]
    assert len({" ".join(text.split()) for text in asked}) == len(asked) == 39
    again = made(tmp_path / "again", task="gcd:2, leg_counting:1")
    assert again == splits
    assert made(tmp_path / "other", task="gcd:2, leg_counting:1", seed=1) != splits


@pytest.mark.slow
def test_a_seed_gives_the_same_questions_in_each_process():
    with (
        begun(EVERY_TASK, more={"PYTHONHASHSEED": "1"}) as first,
        begun(EVERY_TASK, more={"PYTHONHASHSEED": "2"}) as second,
    ):
        one, other = (process.communicate()[0].splitlines() for process in (first, second))
    assert len(one) > 450
    assert one == other


def test_its_own_scorer_judges_in_a_process_with_limits(tmp_path):
    env = ReasoningGym(task=("gcd",))
    problem = made(tmp_path / "made", task="gcd")["train"][0]
    right = problem.ground_truth["answer"]
    with start_rewards(env) as rewards:
        for said, verdict in (
            (f"so <answer> {right} </answer>", "correct"),
            (f"<answer>{right}0</answer>", "incorrect"),
            ("<answer></answer>", "no_answer"),
            (f"{right}", "no_answer"),
        ):
            assert rewards.submit(said, problem).result().verdict == verdict


@pytest.mark.slow
def test_levels_and_single_settings_change_the_questions(tmp_path):
    def most_animals(**env: Any) -> int:
        rows = made(tmp_path / str(len(list(tmp_path.iterdir()))), task="leg_counting", **env)
        return max(row.ground_truth["metadata"]["num_animals"] for row in rows["train"])

    assert most_animals(config={"leg_counting": {"min_animals": 2, "max_animals": 2}}) == 2
    assert most_animals(difficulty=0) < most_animals(difficulty=9)
    assert most_animals(difficulty=9, config={"leg_counting": {"max_animals": 2}}) == 2


@pytest.mark.parametrize(("task", "config"), TABLES["one of several words"])
def test_a_setting_that_is_one_of_several_words_is_taken_and_scored(tmp_path, task, config):
    for row in made(tmp_path, task=task, config={task: config})["train"][:3]:
        answer = f"<answer>{row.ground_truth['answer']}</answer>"
        assert compute_score("", answer, row.ground_truth)["acc"]
        assert task != "word_sorting" or row.ground_truth["answer"].isupper()


@pytest.mark.parametrize(("env", "said"), TABLES["refused"])
def test_what_the_package_cannot_give_is_said(tmp_path, env, said):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        made(tmp_path / "made", **env)
    assert said in str(caught.value)


@pytest.mark.parametrize(("env", "said"), TABLES["settings"])
def test_settings_are_checked(env, said):
    with pytest.raises(ValidationError) as caught:
        ReasoningGym(**env)
    assert said in str(caught.value)


def test_names_and_weights_are_written_on_a_line():
    config = compose(
        ["env=reasoning_gym", "env.task=gcd:2,lcm", "env.config={gcd: {max_value: 9}}"]
    )
    assert config.env.weights == {"gcd": 2.0, "lcm": 1.0}
    assert json.loads(config.env.config) == {"gcd": {"max_value": 9}}
    assert compose(["env=reasoning_gym", "env.task=[gcd,lcm]"]) == compose(
        ["env=reasoning_gym", "env.task='gcd,lcm'"]
    )


def test_truths_with_tuples_are_judged_as_the_package_does(tmp_path):
    problem = made(tmp_path / "made", train=2, test=1, task="arc_agi")["train"][0]
    right = problem.ground_truth["answer"]
    first, *others = right.splitlines()
    wrong = "\n".join([first.translate(str.maketrans("0123456789", "1234567890")), *others])
    for answer, score in ((right, 1.0), (wrong, 0.05)):
        said = compute_score("", f"<answer>{answer}</answer>", problem.ground_truth)
        assert said["score"] == score


@pytest.mark.parametrize(
    "value",
    [
        {"board": ((1, 2), (3, [4, (5,)]))},
        {1: "a", "1": "b", (2, 3): {"__tuple__": []}},
        {"__items__": [1], "plain": None, "nested": {True: 1.5}},
        [],
        "text",
    ],
)
def test_containers_come_back_from_json_as_they_were(value):
    back = from_json(json.loads(json.dumps(to_json(value))))
    assert back == value
    assert repr(back) == repr(value)  # a list that equals no tuple, a key that is no text


def test_another_version_of_the_package_makes_another_data_set(tmp_path, monkeypatch):
    env, data = ReasoningGym(), DataConfig(train_size=4, test_size=2)
    name, countdown = dataset_name(env, data), dataset_name(Countdown(), data)
    write_dataset(env, data, tmp_path / name)
    assert is_ready(env, data, tmp_path / name)
    monkeypatch.setattr("rl_core.data.dataset.version_of", lambda package: "9.9")
    assert dataset_name(env, data) != name
    assert dataset_name(Countdown(), data) == countdown
    with pytest.raises(ValueError, match="the package's version differs"):
        is_ready(env, data, tmp_path / name)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("rl_core.envs.reasoning_gym.problems.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install reasoning-gym"):
        ReasoningGym.rows.make(ReasoningGym(), train_size=1, test_size=1, seed=0)
