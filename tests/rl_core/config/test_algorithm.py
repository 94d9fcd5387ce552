"""What an algorithm brings along: its clips and its aggregation, unless the settings say others."""

import pytest

from rl_core.config.run import RunConfig

OWN = {
    ("grpo", "ppo"): (0.2, 0.2, "token-mean"),
    ("grpo", "gspo"): (3e-4, 4e-4, "seq-mean-token-mean"),
    ("grpo", "cispo"): (1.0, 4.0, "token-mean"),
    ("dr_grpo", "ppo"): (0.2, 0.2, "seq-mean-token-sum-norm"),
    ("dr_grpo", "gspo"): (3e-4, 4e-4, "seq-mean-token-mean"),
}


def settings(estimator: str = "grpo", **actor: object) -> RunConfig:
    algorithm = {"estimator": estimator, "group_size": 2}
    return RunConfig.model_validate({"algorithm": algorithm, "actor": actor})


@pytest.mark.parametrize(("names", "own"), OWN.items())
def test_an_algorithm_has_its_own_clips_and_aggregation(names, own):
    config = settings(names[0], policy_loss=names[1])
    assert (*config.actor.clips.values(), config.loss_aggregation) == own


def test_what_is_set_wins():
    config = settings("dr_grpo", clip_eps_high=0.28, loss_aggregation="token-mean")
    assert config.actor.clips == {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
    assert config.loss_aggregation == "token-mean"
    assert RunConfig().loss_options["dual_clip"] == 3.0
    assert "dual_clip" not in settings(policy_loss="gspo").loss_options
    assert RunConfig().actor.clips == {"clip_eps_low": 0.2, "clip_eps_high": 0.2}
    assert RunConfig().loss_aggregation == "token-mean"


@pytest.mark.parametrize(
    "actor", [{"clip_eps_low": 0.03}, {"clip_eps_high": 0.2}, {"loss_aggregation": "token-mean"}]
)
def test_what_makes_nothing_of_gspo_is_refused(actor):
    ((key, value),) = actor.items()
    with pytest.raises(ValueError, match=f"actor.{key}={value}"):
        settings(policy_loss="gspo", **actor)
    settings(policy_loss="gspo", clip_eps_high=0.02, loss_aggregation="seq-mean-token-sum")


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_as_a_loss_kl_must_have_the_gradient_of_the_kl(estimator):
    algorithm = {"kl_mode": "loss", "kl_estimator": estimator}
    with pytest.raises(ValueError, match=f"kl_estimator={estimator} as a loss .*use .*=k2"):
        RunConfig.model_validate({"algorithm": algorithm})
    RunConfig.model_validate({"algorithm": algorithm | {"kl_mode": "reward"}})
