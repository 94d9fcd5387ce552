"""The example of docs/training.md, word for word: by hand, in a learner, and in a run."""

import json
import math
from pathlib import Path

import pytest
import torch

from rl_core.algos.losses import GivenTokens
from rl_core.batch import collate
from rl_core.config.run import RunConfig
from rl_core.learner.own_check import check_estimator, check_loss
from tests.support.experiences import experience_of
from tests.support.programs import PROGRAM, run

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
OWN = "## An algorithm of your own"
EXAMPLE = PAGE.partition(OWN)[2].split("```python\n")[1].partition("```")[0]
SUPPORT = "tests.support.own_algorithms"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which the example lies."""
    (tmp_path / "my_algorithms.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("example")
def test_the_example_by_hand(make_rollout):
    for options in ({}, {"tau": 0.5}):
        check_estimator("my_algorithms:estimate", options)
        check_loss("my_algorithms:loss", options)
    rollouts = [
        make_rollout([1], [2 + i, 3], score=score, group_id=i)
        for i, score in enumerate((1.0, 0.0, 0.5))
    ]
    own = {"estimator": "my_algorithms:estimate", "kl_mode": "none"}
    inputs = {"old": torch.zeros(3, 2), "ref": None, "values": None}
    experience = experience_of(collate(rollouts, 0), **inputs, **own)
    assert experience.advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5], [0.0, 0.0]]
    shifted = experience_of(collate(rollouts, 0), **inputs, **own, options={"tau": 0.5})
    assert shifted.advantages[:, 0].tolist() == [0.0, -1.0, -0.5]

    actor = RunConfig.model_validate({"actor": {"policy_loss": "my_algorithms:loss"}}).actor
    ratios, mask = torch.tensor([[2.0, 0.5, 9.0, 7.0]]), torch.tensor([[True, True, True, False]])
    logprobs = ratios.log().requires_grad_()
    zero, advantages = torch.zeros(1, 4), torch.tensor([[1.0, -1.0, 2.0, 3.0]])
    tokens = actor.formula.function(GivenTokens(logprobs, zero, zero, advantages, mask))
    assert tokens.per_token[mask].tolist() == pytest.approx([-2.0, 0.5, -10.0])
    tokens.per_token[mask].sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[mask].tolist() == pytest.approx([-2.0, 0.5, 0.0])


def test_an_estimator_sees_the_rows_of_its_problems(make_rollout):
    own = {"estimator": f"{SUPPORT}:by_info", "options": {"key": "index"}, "kl_mode": "none"}
    rollouts = [make_rollout([1], [2], group_id=i) for i in range(2)]
    inputs = {"old": torch.zeros(2, 1), "ref": None, "values": None}
    experience = experience_of(collate(rollouts, 0), **inputs, **own)
    expected = [[float(rollout.problem.index)] for rollout in rollouts]
    assert experience.advantages.tolist() == expected


def test_the_same_formula_from_outside_teaches_alike(new_learner, make_batch):
    """`by_token` and `reinforce` on one on-policy update: the gradient of plain REINFORCE."""
    metrics = {}
    for loss in ("ppo", f"{SUPPORT}:reinforce"):
        learner = new_learner(
            actor={"mini_batch_size": 8, "policy_loss": loss, "entropy_coef": 0},
            algorithm={"estimator": f"{SUPPORT}:by_token", "kl_mode": "none"},
        )
        metrics[loss], _ = learner.learn(make_batch())
    ours, own = metrics.values()
    assert own["actor/grad_norm"] == pytest.approx(ours["actor/grad_norm"], rel=1e-5)
    assert math.isfinite(own["actor/pg_loss"])
    assert own["actor/pg_clipfrac"] == 0.0


@pytest.mark.parametrize(("loss", "teach"), [("ppo", 0), (f"{SUPPORT}:reinforce", 8)])
def test_rows_without_an_advantage_teach_only_a_loss_of_ones_own(
    new_learner, make_batch, loss, teach
):
    batch = make_batch(group_size=2)
    batch.rewards.zero_()
    learner = new_learner(
        actor={"policy_loss": loss, "entropy_coef": 0},
        algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
    )
    experience, _ = learner.make_experience(batch)
    assert int(learner.updater.teaches("actor", experience).sum()) == teach


@pytest.mark.slow
def test_a_run_trains_with_it_and_does_not_go_on_with_another_file(example, tiny_overrides):
    words = [
        *("train", f"storage.root={example}", "run_id=own", *tiny_overrides, "rollout.engine=hf"),
        *("algorithm.estimator=my_algorithms:estimate", "algorithm.options={tau: 0.25}"),
        "actor.policy_loss=my_algorithms:loss",
    ]
    done = run(*PROGRAM, *words, "trainer.total_steps=1", cwd=example)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = example / "runs" / "own"
    record = json.loads((folder / "run.json").read_text())
    assert set(record["own_code"]) == {"my_algorithms:estimate", "my_algorithms:loss"}
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["actor/grad_norm"] > 0

    (example / "my_algorithms.py").write_text(EXAMPLE.replace("max=5", "max=4"))
    refused = run(*PROGRAM, *words, "trainer.total_steps=2", cwd=example)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "the file of algorithm.estimator=my_algorithms:estimate has changed" in refused.stderr
    (example / "my_algorithms.py").write_text(EXAMPLE)
    (example / "other.py").write_text(EXAMPLE.replace("max=5", "max=4"))
    new = ["actor.policy_loss=other:loss" if "policy_loss" in word else word for word in words]
    done = run(*PROGRAM, *new, "trainer.total_steps=2", cwd=example)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "other:loss" in json.loads((folder / "run.json").read_text())["own_code"]

    broken = EXAMPLE.replace("given.rewards.mean()", "given.reward.mean()")
    (example / "my_algorithms.py").write_text(broken)
    refused = run(*PROGRAM, *(word for word in new if word != "run_id=own"), cwd=example)
    assert refused.returncode == 2
    assert "algorithm.estimator=my_algorithms:estimate AttributeError: " in refused.stderr
    assert len(list((example / "runs").iterdir())) == 1
