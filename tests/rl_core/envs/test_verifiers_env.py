"""An environment of verifiers, if that is installed (`pip install verifiers`)."""

import pickle

import pytest

from rl_core.data.dataset import problems_in
from rl_core.envs import find_env
from rl_core.rewards.scoring import start_rewards

NAME = "tests.support.verifiers_env:load_environment"


def test_its_rows_are_problems_and_its_rubric_scores():
    pytest.importorskip("verifiers")
    env = find_env(NAME)()
    assert (env.name, env.reward) == (NAME, (NAME,))
    assert pickle.loads(pickle.dumps(env)) == env
    tables = env.make_splits(train_size=5, test_size=3, seed=0)
    problems = problems_in(tables["train"], "train")
    assert [message["content"] for message in problems[0].messages] == [
        "Be brief.",
        "What is 3 + 1?",
    ]
    with start_rewards(env) as rewards:
        texts = ("4", "It is 4", "5")
        scored = [rewards.submit(text, problems[0]).result(120) for text in texts]
    assert [one.score for one in scored] == [1.5, 0.0, 0.5]
    assert [one.verdict for one in scored] == ["correct", "incorrect", "incorrect"]
    with pytest.raises(ValueError, match="has 4 train and 4 test problems"):
        env.make_splits(train_size=5, test_size=4, seed=0)


def test_several_turns_are_refused(monkeypatch):
    pytest.importorskip("verifiers")
    monkeypatch.setattr(find_env(NAME), "load", object)
    with pytest.raises(ValueError, match="returns object: only a SingleTurnEnv"):
        find_env(NAME)().make_splits(train_size=1, test_size=1, seed=0)
