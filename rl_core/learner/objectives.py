"""What an update minimises: a micro-batch's outputs -> its shares of the loss and of the metrics.

Between formulas (algos/) and the learner: which formula, and which terms, the settings ask for.
Legend: b responses of a micro-batch, T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rl_core.algos.kl import kl_estimate
from rl_core.algos.losses import (
    cispo_policy_loss,
    clipped_value_loss,
    gspo_policy_loss,
    ppo_policy_loss,
    truncated_importance_weights,
)
from rl_core.algos.masking import Denominators, aggregate
from rl_core.config.run import ActorConfig, AlgorithmConfig
from rl_core.learner.experience import Experience
from rl_core.models.forward import TokenOutputs

_POLICY_LOSSES = {"ppo": ppo_policy_loss, "gspo": gspo_policy_loss, "cispo": cispo_policy_loss}


@dataclass(frozen=True)
class Objective:
    """A micro-batch's shares of what a mini-batch's update minimises and tells."""

    loss: Tensor
    """A scalar with gradient."""
    metrics: dict[str, Tensor]
    """Scalars, under verl's names."""


def actor_objective(
    outputs: TokenOutputs,
    micro: Experience,
    *,
    actor: ActorConfig,
    algorithm: AlgorithmConfig,
    kl_coef: float,
    denominators: Denominators,
) -> Objective:
    """Returns the policy's loss and metrics.

    The loss is the policy loss, less the entropy bonus, plus the KL penalty (`kl_mode=loss`).

    Args:
        outputs: log-probs and entropy of the policy that learns, with gradient.
        micro: b rows of a mini-batch.
        actor: kind of policy loss, clips, entropy bonus, aggregation.
        algorithm: kind of KL.
        kl_coef: this step's KL coefficient.
        denominators: of the whole mini-batch.
    """
    logprobs, entropy = outputs.logprobs, outputs.entropy
    assert logprobs is not None
    assert entropy is not None
    mask = micro.loss_mask
    old_logprobs = logprobs.detach() if micro.is_on_policy else micro.old_logprobs
    weights = None
    if actor.importance_cap is not None:
        weights = truncated_importance_weights(
            old_logprobs, micro.batch.rollout_logprobs, mask, cap=actor.importance_cap
        )
    policy = _POLICY_LOSSES[actor.policy_loss](
        logprobs,
        old_logprobs,
        micro.advantages,
        mask,
        clip_eps_low=actor.clip_eps_low,
        clip_eps_high=actor.clip_eps_high,
        aggregation=actor.loss_aggregation,
        denominators=denominators,
        importance_weights=weights,
    )
    entropy_loss = aggregate(entropy, mask, actor.loss_aggregation, denominators)
    loss = policy.loss
    if actor.entropy_coef > 0:
        loss = loss - actor.entropy_coef * entropy_loss
    metrics = {
        "actor/pg_loss": policy.loss,
        "actor/pg_clipfrac": policy.clip_frac,
        "actor/ppo_kl": policy.approx_kl,
        "actor/entropy_loss": entropy_loss,
    }
    if algorithm.kl_mode == "loss" and micro.ref_logprobs is not None:
        kl = kl_estimate(logprobs, micro.ref_logprobs, algorithm.kl_estimator)
        metrics["actor/kl_loss"] = aggregate(kl, mask, actor.loss_aggregation, denominators)
        loss = loss + kl_coef * metrics["actor/kl_loss"]
    return Objective(loss, metrics)


def critic_objective(
    outputs: TokenOutputs,
    micro: Experience,
    *,
    value_clip: float,
    denominators: Denominators,
) -> Objective:
    """Returns the critic's loss and metrics.

    Args:
        outputs: values of the critic that learns, with gradient.
        micro: b rows of a mini-batch, with old values and returns.
        value_clip: how far a value may move from the old one before it teaches nothing.
        denominators: of the whole mini-batch.
    """
    assert outputs.values is not None
    assert micro.values is not None
    assert micro.returns is not None
    value = clipped_value_loss(
        outputs.values,
        micro.values,
        micro.returns,
        micro.loss_mask,
        value_clip=value_clip,
        denominators=denominators,
    )
    return Objective(
        value.loss,
        {
            "critic/vf_loss": value.loss,
            "critic/vf_clipfrac": value.clip_frac,
            "critic/vpred_mean": value.prediction_mean,
        },
    )
