"""What an algorithm brings along: its clips and its aggregation, unless the settings say others."""

import pytest

from rl_core.config.run import RunConfig

OWN = {
    ("grpo", "ppo"): (0.2, 0.2, "token-mean"),
    ("grpo", "gspo"): (3e-4, 4e-4, "seq-mean-token-mean"),
    ("grpo", "cispo"): (1.0, 4.0, "token-mean"),
    ("grpo", "dppo"): (0.2, 0.2, "token-mean"),
    ("dr_grpo", "ppo"): (0.2, 0.2, "seq-mean-token-sum-norm"),
    ("dr_grpo", "gspo"): (3e-4, 4e-4, "seq-mean-token-mean"),
}


def settings(estimator: str = "grpo", **actor: object) -> RunConfig:
    algorithm = {"estimator": estimator, "group_size": 2}
    return RunConfig.model_validate({"algorithm": algorithm, "actor": actor})


@pytest.mark.parametrize(("names", "own"), OWN.items())
def test_an_algorithm_has_its_own_clips_and_aggregation(names, own):
    cap = {"importance_cap": None} if names[1] == "dppo" else {}
    config = settings(names[0], policy_loss=names[1], **cap)
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


def test_maxrl_has_no_penalty_in_the_reward():
    with pytest.raises(ValueError, match=r"algorithm.kl_mode=reward must be none"):
        settings("maxrl")
    for kl in ({"kl_mode": "none"}, {"kl_coef": 0}, {"kl_mode": "loss", "kl_estimator": "k2"}):
        algorithm = {"estimator": "maxrl", "group_size": 2} | kl
        config = RunConfig.model_validate({"algorithm": algorithm})
        assert config.loss_aggregation == "seq-mean-token-sum-norm"


def test_distillation_needs_a_teacher_and_no_spread():
    with pytest.raises(ValueError, match=r"estimator=distill .* set teacher.path"):
        settings("distill")
    teacher = {"path": "strong/best"}
    config = RunConfig.model_validate({"algorithm": {"estimator": "distill"}, "teacher": teacher})
    assert not config.algorithm.has_reference  # a penalty in no reward
    algorithm = {"estimator": "grpo", "group_size": 2, "resample_rounds": 1}
    with pytest.raises(ValueError, match=r"resample_rounds=1 .* teacher.path=strong/best"):
        RunConfig.model_validate({"algorithm": algorithm, "teacher": teacher})


def test_dppo_corrects_for_the_engine_by_itself():
    with pytest.raises(ValueError, match=r"importance_cap=2 would correct .* twice"):
        settings(policy_loss="dppo")
    algorithm = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
    actor = {"policy_loss": "dppo", "importance_cap": None, "ppo_epochs": 2}
    rollout = {"staleness": 1}
    config = RunConfig.model_validate({"algorithm": algorithm, "actor": actor, "rollout": rollout})
    assert config.has_one_update  # no pass for old log-probs, however many updates


def test_bounds_of_importance_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match=r"importance_level=geometric keeps or drops"):
        settings(importance_level="geometric")
    settings(importance_level="geometric", importance_outside="drop", importance_cap=1.01)


def test_an_overlong_penalty_needs_rewards_and_room():
    algorithm = {"estimator": "grpo", "group_size": 2, "overlong_tokens": 1024}
    with pytest.raises(ValueError, match=r"fewer than data.max_response_length=1024"):
        RunConfig.model_validate({"algorithm": algorithm})
    algorithm |= {"estimator": "maxrl", "kl_mode": "none", "overlong_tokens": 100}
    with pytest.raises(ValueError, match=r"overlong_tokens=100 .*estimator=maxrl ignores"):
        RunConfig.model_validate({"algorithm": algorithm})
    algorithm |= {"overlong_tokens": 0, "length_penalty": 0.1}
    with pytest.raises(ValueError, match=r"length_penalty=0.1 .*estimator=maxrl ignores"):
        RunConfig.model_validate({"algorithm": algorithm})


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_as_a_loss_kl_must_have_the_gradient_of_the_kl(estimator):
    algorithm = {"kl_mode": "loss", "kl_estimator": estimator}
    with pytest.raises(ValueError, match=f"kl_estimator={estimator} as a loss .*use .*=k2"):
        RunConfig.model_validate({"algorithm": algorithm})
    RunConfig.model_validate({"algorithm": algorithm | {"kl_mode": "reward"}})
