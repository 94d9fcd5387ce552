import math

import pytest
import torch

from rl_core.batch import collate
from rl_core.learner.metrics import rollout_columns
from tests.support.experiences import experience_of


def test_the_score_stands_at_the_last_token_less_the_kl_penalty(two_responses):
    # k1 is 0.5, -1 and 2; a tenth of it is taken off the scores 1.0 and 0.1.
    expected = torch.tensor([[-0.05, 1.1], [-0.1, 0.0]])
    torch.testing.assert_close(experience_of(two_responses).token_rewards, expected)


def test_without_a_penalty_the_rewards_are_the_scores(two_responses):
    as_a_loss = experience_of(two_responses, kl_mode="loss")
    without = experience_of(two_responses, ref=None)
    for experience in (as_a_loss, without):
        torch.testing.assert_close(experience.token_rewards, torch.tensor([[0.0, 1.0], [0.1, 0.0]]))
    assert as_a_loss.kl_per_response == pytest.approx((-0.5 + 2.0) / 2)
    assert without.kl_per_response == 0.0
    assert all(math.isnan(x) for x in rollout_columns(without)["ref_kl"])


def test_gae_returns_are_the_rewards_to_go_and_advantages_are_whitened(two_responses):
    experience = experience_of(two_responses)
    torch.testing.assert_close(experience.returns, torch.tensor([[1.05, 1.1], [-0.1, 0.0]]))
    raw = torch.tensor([1.05 - 0.5, 1.1 - 0.25, -0.1 - 1.0])
    expected = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(experience.advantages[two_responses.response_mask], expected)


@pytest.mark.parametrize(
    "estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus"]
)
def test_critic_free_estimators_favour_the_better_response(make_rollout, estimator):
    rollouts = [
        make_rollout([1], [2, 3], score=1.0, verdict="correct"),
        make_rollout([1], [2, 4], score=0.1),
    ]
    experience = experience_of(
        collate(rollouts, 0), values=None, kl_mode="none", estimator=estimator
    )
    assert experience.returns is None
    good, bad = experience.advantages.tolist()
    assert good[0] > 0.4
    assert good == pytest.approx([-x for x in bad])
    assert good[0] == pytest.approx(good[1])


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_the_gate_closes_groups_that_all_fail(make_rollout, estimator):
    # Rewards 0.1 and 0 without a correct response; beside them a group with one.
    rollouts = [
        make_rollout([1], [2], score=0.1, group_id=0),
        make_rollout([1], [3], score=0.0, group_id=0),
        make_rollout([1], [2], score=1.0, verdict="correct", group_id=1),
        make_rollout([1], [3], score=0.1, group_id=1),
    ]
    batch = collate(rollouts, 0)
    settings = {"estimator": estimator, "kl_mode": "none", "group_size": 2}
    inputs = {"old": torch.zeros(4, 1), "ref": None, "values": None}
    gated, ungated = (
        experience_of(batch, **inputs, **settings, outcome_gate=gate).advantages.flatten()
        for gate in (True, False)
    )
    assert gated[:2].tolist() == [0.0, 0.0]
    assert gated[2] > 0.4
    assert ungated[0] > 0.04


def test_grpo_does_not_blow_the_kl_penalty_up_where_all_score_alike(make_rollout):
    # KL of 0.2 and -0.8 nats, a tenth of it off: 0.98 and 1.08, whose own std is 0.07.
    rollouts = [make_rollout([1], [2 + i], score=1.0, verdict="correct") for i in range(2)]
    inputs = {"old": torch.tensor([[-1.0], [-2.0]]), "ref": torch.full((2, 1), -1.2)}
    settings = {"values": None, "group_size": 2, "outcome_gate": False}
    experience = experience_of(collate(rollouts, 0), **inputs, **settings, estimator="grpo")
    assert experience.advantages.tolist() == [[0.0], [0.0]]


def test_select_cuts_every_tensor_alike(two_responses):
    chosen = experience_of(two_responses).select(torch.tensor([1]))
    assert len(chosen.batch) == 1
    assert chosen.old_logprobs.tolist() == [[-3.0]]
    assert chosen.values.tolist() == [[1.0]]
    assert chosen.kl.tolist() == [[2.0]]
    assert experience_of(two_responses, ref=None).select(torch.tensor([0])).ref_logprobs is None


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 1.0, 1.0, None], [0.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, None], [0.7071, -0.7071, 0.0]),
        ([1.0, None, None], [0.0, 0.0, 0.0]),
        ([None, None], [0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("estimator", ["grpo", "maxrl"])
def test_a_reward_that_failed_is_no_wrong_answer(make_rollout, estimator, scores, expected):
    """Counted as 0, the failure would get -1.5 beside three right answers."""
    verdicts = {1.0: "correct", 0.0: "wrong_value", None: "reward_error"}
    rollouts = [
        make_rollout([1], [2, 3], score=score or 0.0, verdict=verdicts[score]) for score in scores
    ]
    experience = experience_of(
        collate(rollouts, 0), values=None, kl_mode="none", estimator=estimator
    )
    if estimator == "maxrl":  # (c - m) / m of the two that have a score
        expected = [x and x / 0.7071 for x in expected]
    assert experience.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-4)
    learned = [score is not None for score in scores]
    assert experience.loss_mask.all(dim=-1).tolist() == learned
    assert experience.loss_mask.any(dim=-1).tolist() == learned


def test_whitening_leaves_out_what_has_no_score(make_rollout):
    rollouts = [
        make_rollout([1], [2], score=1.0, verdict="correct", group_id=0),
        make_rollout([1], [2], score=0.0, group_id=1),
        make_rollout([1], [2], score=0.0, verdict="reward_error", group_id=2),
    ]
    settings = {"values": None, "kl_mode": "none", "estimator": "reinforce_plus_plus"}
    experience = experience_of(collate(rollouts, 0), **settings)
    without = experience_of(collate(rollouts[:2], 0), **settings)
    assert experience.advantages.tolist() == [*without.advantages.tolist(), [0.0]]
