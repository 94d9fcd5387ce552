"""Answers written to be executed, to change a scorer, or to cost the night: they score nothing."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from rl_core.config.rollout import RewardConfig
from rl_core.envs.reasoning_gym import ReasoningGym
from rl_core.rewards.scoring import Rewards, start_rewards
from rl_core.types import Problem
from tests.support.hostile_answers import COSTLY, attacks

pytest.importorskip("reasoning_gym", reason="make env leaves it out without a C compiler")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)
    from reasoning_gym.factory import DATASETS

from rl_core.envs.reasoning_gym.problems import _truth, open_task
from rl_core.envs.reasoning_gym.scoring import _OWN_SCORERS, compute_score
from rl_core.envs.reasoning_gym.truths import REFUSED, from_json

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())
WITHOUT_ANSWERS = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
EXECUTED = (
    *("string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "countdown", "puzzle24"),
)
"""By the package's own scorers."""
ENV = ReasoningGym()
LIMITS = RewardConfig(timeout_s=300)  # of a busy machine: CPU seconds are the limit


def first_truth(task: str) -> dict[str, Any]:
    dataset, config = open_task(task, None, {}, seed=3, num_rows=1)
    truth = _truth(task, config, dataset[0])
    return {**truth, "answer": truth["answer"] or "?"}


def verdicts(rewards: Rewards, truth: dict[str, Any], answers: list[str]) -> list[str]:
    problem = Problem(0, "reasoning_gym", (), truth, 0)
    texts = [f"<answer>{answer}</answer>" for answer in answers]
    return [scored.result().verdict for scored in [rewards.submit(t, problem) for t in texts]]


@pytest.fixture(scope="module")
def rewards() -> Iterator[Rewards]:
    with start_rewards(ENV, LIMITS) as started:
        yield started


def check(rewards: Rewards, task: str, folder: Path, costly: tuple[str, ...]) -> None:
    """Has a worker score all of it: no effect, no `reward_error`, no restart, nothing correct."""
    target, truth = folder / "made", first_truth(task)
    workers = psutil.Process().children()
    assert set(verdicts(rewards, truth, [*attacks(target), *costly])) == {"incorrect"}
    assert verdicts(rewards, truth, ["nonsense"]) == ["incorrect"]
    if task not in WITHOUT_ANSWERS:
        assert verdicts(rewards, truth, [truth["answer"]]) == ["correct"]
    assert psutil.Process().children() == workers
    assert all(worker.children(recursive=True) == [] for worker in workers)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("task", EXECUTED)
def test_what_the_packages_scorers_would_run_is_not_run(rewards, task, tmp_path):
    check(rewards, task, tmp_path, ())


TASKS = sorted({*DATASETS} - {"composite", *REFUSED})
BY_SCORER = {_OWN_SCORERS.get(task, DATASETS[task][0].score_answer): task for task in TASKS}
"""One task of each scorer: 33 have that of the package's base class."""


@pytest.mark.slow
@pytest.mark.parametrize("task", BY_SCORER.values())
def test_no_task_runs_or_waits_for_what_a_model_wrote(rewards, task, tmp_path):
    check(rewards, task, tmp_path, COSTLY)


OTHERS = sorted({*TASKS} - {*WITHOUT_ANSWERS, *EXECUTED})


@pytest.mark.parametrize(
    "task", [*EXECUTED, *(pytest.param(task, marks=pytest.mark.slow) for task in OTHERS)]
)
def test_a_tasks_own_answer_scores_as_in_the_package(task):
    dataset, config = open_task(task, None, {}, seed=5, num_rows=3)
    for index in range(3):
        truth = _truth(task, config, dataset[index])
        if truth is not None and truth["answer"].strip():
            said = compute_score("", f"<answer>{truth['answer']}</answer>", truth)
            assert said["score"] == dataset.score_answer(truth["answer"], from_json(truth))
            assert task not in EXECUTED or said["acc"]


def truth_of(of: str, answer: str, /, **metadata: Any) -> dict[str, Any]:
    return {"task": of, "config": {}, "question": "", "answer": answer, "metadata": metadata}


@pytest.mark.parametrize(("task", "right", "metadata", "answer", "score"), TABLES["scores"])
def test_answers_are_read_as_before_and_none_has_full_marks_for_nothing(
    task, right, metadata, answer, score
):
    truth = truth_of(task, right, **metadata)
    said = compute_score("", f"<answer>{answer}</answer>", truth)
    assert said == {"score": score, "acc": score == 1, "pred": answer}


def test_a_data_file_runs_nothing_either(tmp_path):
    for run in attacks(tmp_path / "made"):
        for truth in (
            truth_of("number_sorting", run, direction="ascending"),
            truth_of("bitwise_arithmetic", "0x1", problem=run),
        ):
            assert compute_score("", "<answer>[1]</answer>", truth)["score"] == 0.0
    assert list(tmp_path.iterdir()) == []
