"""Stages 6 and 7: experience -> losses -> gradients -> one optimizer step per mini-batch.

The settings choose the formula of algos/ and its terms. The optimizers are in optimizer.py.
Legend: b responses of a micro-batch, T response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from rl_core.algos.distillation import teacher_advantages
from rl_core.algos.kl import kl_estimate
from rl_core.algos.losses import (
    GivenTokens,
    clipped_value_loss,
    share_of_loss,
)
from rl_core.algos.masking import Denominators, aggregate, count_denominators
from rl_core.batch import mini_batches
from rl_core.config.run import RunConfig
from rl_core.errors import out_of_memory_as
from rl_core.learner.experience import Experience
from rl_core.learner.microbatching import Microbatching, in_rows
from rl_core.learner.optimizer import ModelOptimizer, side_by_side
from rl_core.learner.profiling import measured
from rl_core.models.fast_linear import cast_once
from rl_core.models.forward import ForwardPass
from rl_core.models.loading import Models
from rl_core.models.logprobs import Head

Name = Literal["actor", "critic"]
"""A model that learns, and the prefix of its metrics."""


@dataclass(frozen=True)
class Pass:
    """What a pass over a micro-batch returns besides its loss, without gradient."""

    metrics: Mapping[str, Tensor]
    """Its shares, scalars."""
    per_token: Tensor
    """The actor's log-probs or the critic's values, [b, T]."""


class Updater:
    """Updates the models that have an optimizer from a step's experience; holds no other state.

    `forward` has the run's temperature and type. Each rank computes the gradient of its own rows.
    """

    def __init__(
        self,
        config: RunConfig,
        models: Models,
        optimizers: Mapping[str, ModelOptimizer],
        forward: ForwardPass,
        microbatching: Microbatching,
    ) -> None:
        self._config = config
        self._models = models
        self._optimizers = optimizers
        self._forward = forward
        self._microbatching = microbatching
        self._ranks = microbatching.ranks

    def update(
        self, experience: Experience, *, kl_coef: float, actor_learns: bool
    ) -> tuple[Experience, dict[str, float]]:
        """Does all updates of a step, model after model; returns metrics under verl's names.

        Metrics are means over the updates. The experience is returned with the values and log-probs
        of the first passes, if it had none. During the critic's warm-up the actor does not learn.
        """
        actor = self._config.actor
        batches = mini_batches(experience.batch.group_ids, actor.mini_batch_size)
        metrics: dict[str, float] = {}
        for name in self.learners(actor_learns=actor_learns):
            optimizer = self._optimizers[name]
            metrics[f"{name}/lr"] = optimizer.lr
            with measured(f"update_{name}", self._microbatching.device, metrics):
                updates = [
                    self._update(name, experience.select(rows), kl_coef)
                    for _ in range(actor.ppo_epochs)
                    for rows in batches
                ]
                optimizer.end_step()
            metrics |= {
                metric: float(torch.stack([shares[metric] for shares, _ in updates]).mean())
                for metric in updates[0][0]
            }
            metrics[f"{name}/skipped_steps"] *= len(updates)  # a count
            first_epoch = zip(batches, (per_token for _, per_token in updates), strict=False)
            per_token = in_rows(first_epoch, experience.batch.rollout_logprobs)
            if name == "critic" and experience.values is None:
                experience = experience.with_advantages(per_token, self._config.algorithm)
            if name == "actor" and experience.old_logprobs is None:
                experience = replace(experience, old_logprobs=per_token)
        return experience, metrics

    def learners(self, *, actor_learns: bool) -> list[Name]:
        """Returns the models that learn, in this order."""
        critic: list[Name] = [] if self._models.critic is None else ["critic"]
        return [*critic, "actor"] if actor_learns else critic

    def _update(
        self, name: Name, mini: Experience, kl_coef: float
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Updates the weights once, from a mini-batch; returns as `accumulate`, of all ranks.

        If nothing in it teaches, the weights stay: AdamW would move them by its momentum.
        """
        optimizer = self._optimizers[name]
        phase = f"update_{name}"
        teaches = self.teaches(name, mini)
        is_skipped = not bool(teaches.any())

        def attempt(micro_batches: list[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            optimizer.offload()  # after an attempt that ran out of memory late
            shares, per_token = self.accumulate(name, mini, micro_batches, kl_coef)
            metrics = self._ranks.add_shares(shares)
            norm = per_token.new_zeros(()) if is_skipped else optimizer.clip()
            skipped = per_token.new_tensor(float(is_skipped))
            metrics |= {f"{name}/grad_norm": norm, f"{name}/skipped_steps": skipped}
            return metrics, self._ranks.add(per_token)

        metrics, per_token = self._microbatching.run(phase, mini.batch, attempt, apart=~teaches)
        if not is_skipped:
            # Never repeated: weights must move once. `clip` has allocated all memory for it.
            with out_of_memory_as(phase):
                optimizer.step(metrics[f"{name}/grad_norm"])
        return metrics, per_token

    def teaches(self, name: Name, mini: Experience) -> Tensor:
        """Returns the rows (bool [B]) that a gradient can come from: none if all are masked."""
        has_tokens = mini.loss_mask.any()
        if name == "critic":
            return has_tokens.expand(len(mini.batch))
        actor = self._config.actor
        algorithm = self._config.algorithm
        has_other_terms = (
            actor.entropy_coef > 0
            or algorithm.kl_mode == "loss"
            or not actor.formula.needs_advantages
            or self._models.teacher is not None
        )
        return (mini.teaches | has_other_terms) & has_tokens

    def accumulate(
        self, name: Name, mini: Experience, micro_batches: Sequence[Tensor], kl_coef: float
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Sets the weights' `.grad` to a mini-batch's gradient.

        Returns its metrics, scalars, and the passes' log-probs or values, [B, T], without gradient.
        `micro_batches` are its rows, int64 [b] each; what the loss is divided by does not depend on
        the split.
        """
        parameters = self._optimizers[name].parameters
        for parameter in parameters:
            parameter.grad = None  # of an attempt that ran out of memory half-way
        mask = mini.loss_mask
        # If all responses are masked nothing is learned, and any denominator will do.
        denominators = count_denominators(
            mask if bool(mask.any()) else mini.batch.sampled_mask,
            self._config.data.max_response_length,
        )

        teaches = self.teaches(name, mini)
        backward = [bool(teaches[rows].any()) for rows in micro_batches]
        passes = self._ranks.same_passes(micro_batches, backward)

        def computed(number: int) -> tuple[Tensor, Pass]:
            rows, has_gradient = passes[number]
            micro = mini.select(rows)
            with torch.set_grad_enabled(has_gradient):
                if name == "critic":
                    loss, done = self._critic_pass(micro, denominators)
                else:
                    loss, done = self._actor_pass(micro, denominators, kl_coef)
                return loss * float(number < len(micro_batches)), done

        adds_up = len(micro_batches) > 1 and self._ranks.is_alone and not parameters[0].is_cuda
        is_cast = adds_up and self._config.compute_dtype == "bfloat16"
        with (
            side_by_side(parameters) if adds_up else nullcontext(),
            cast_once(self._trunk(name)) if is_cast else nullcontext(),
        ):
            done = self._microbatching.threads.accumulate(parameters, computed, range(len(passes)))
        counted = done[: len(micro_batches)]
        metrics = {
            metric: torch.stack([one.metrics[metric] for one in counted]).sum()
            for metric in counted[0].metrics
        }
        parts = zip(micro_batches, (one.per_token for one in counted), strict=True)
        return metrics, in_rows(parts, mini.batch.rollout_logprobs)

    def _trunk(self, name: Name) -> nn.Module:
        if name == "critic":
            assert self._models.critic is not None
            return self._models.critic.backbone
        return cast("nn.Module", self._models.actor.get_decoder())

    def _actor_pass(
        self, micro: Experience, denominators: Denominators, kl_coef: float
    ) -> tuple[Tensor, Pass]:
        """Returns a micro-batch's share of the policy's loss, its metrics and its log-probs.

        The loss is the policy loss, less the entropy bonus, plus the KL penalty (`kl_mode=loss`)
        and the KL to the teacher (`teacher.signal=full`).
        """
        actor = self._config.actor
        algorithm = self._config.algorithm
        teacher = self._config.teacher
        teacher_outputs = None
        if micro.teacher_states is not None:
            assert self._models.teacher is not None, "it has computed the states"
            head = Head.of(self._models.teacher)
            weight = head.weight.to(micro.teacher_states.device)
            teacher_outputs = (micro.teacher_states, head._replace(weight=weight))
        outputs = self._forward(
            micro.batch, actor=self._models.actor, with_entropy=True, teacher=teacher_outputs
        )
        logprobs = outputs.logprobs
        entropy = outputs.entropy
        assert logprobs is not None
        assert entropy is not None
        assert micro.advantages is not None
        mask = micro.loss_mask
        old_logprobs = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        advantages = micro.advantages
        if micro.teacher_logprobs is not None and teacher.signal == "tokens":
            advantages = advantages + teacher_advantages(
                logprobs, micro.teacher_logprobs, mask, coef=teacher.coef, bound=teacher.bound
            )
        given = GivenTokens(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            rollout_logprobs=micro.batch.rollout_logprobs,
            advantages=advantages,
            mask=mask,
            ref_logprobs=micro.ref_logprobs,
        )
        weights = actor.token_weights(
            old_logprobs, logprobs, micro.batch.rollout_logprobs, advantages, mask
        )
        aggregation = self._config.loss_aggregation
        policy = share_of_loss(
            given,
            actor.formula.function(given, **self._config.loss_options),
            weights,
            aggregation=aggregation,
            denominators=denominators,
        )
        loss = policy.loss
        if actor.entropy_coef > 0:
            loss = loss - actor.entropy_coef * aggregate(entropy, mask, aggregation, denominators)
        metrics = {
            "actor/pg_loss": policy.loss.detach(),
            "actor/pg_clipfrac": policy.clip_frac,
            "actor/ppo_kl": policy.approx_kl,
            "actor/entropy_loss": aggregate(entropy.detach(), mask, "token-mean", denominators),
        }
        if algorithm.kl_mode == "loss" and micro.ref_logprobs is not None:
            kl = kl_estimate(logprobs, micro.ref_logprobs, algorithm.kl_estimator)
            kl_loss = aggregate(kl, mask, aggregation, denominators)
            metrics["actor/kl_loss"] = kl_loss.detach()
            loss = loss + kl_coef * kl_loss
        if outputs.teacher_kl is not None:
            teacher_loss = aggregate(outputs.teacher_kl, mask, aggregation, denominators)
            metrics["actor/teacher_loss"] = teacher_loss.detach()
            loss = loss + teacher.coef * teacher_loss
        return loss, Pass(metrics, logprobs.detach())

    def _critic_pass(self, micro: Experience, denominators: Denominators) -> tuple[Tensor, Pass]:
        """Returns a micro-batch's share of the critic's loss, its metrics and its values."""
        values = self._forward(micro.batch, critic=self._models.critic).values
        assert values is not None
        if micro.values is None:  # the critic's only update: its targets are of this pass
            micro = micro.with_advantages(values.detach(), self._config.algorithm)
        assert micro.values is not None
        assert micro.returns is not None
        value = clipped_value_loss(
            values,
            micro.values,
            micro.returns,
            micro.loss_mask,
            value_clip=self._config.critic.value_clip,
            denominators=denominators,
        )
        metrics = {
            "critic/vf_loss": value.loss.detach(),
            "critic/vf_clipfrac": value.clip_frac,
            "critic/vpred_mean": value.prediction_mean,
        }
        return value.loss, Pass(metrics, values.detach())
