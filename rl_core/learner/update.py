"""Stages 6 and 7: experience -> losses -> gradients -> one optimizer step per mini-batch.

The settings choose the formula of algos/ and its terms. The optimizers are in optimizer.py.
Legend: b responses of a micro-batch, T response tokens.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Literal, cast

import torch
from torch import Tensor, nn

from rl_core.algos.kl import kl_estimate
from rl_core.algos.losses import (
    GivenTokens,
    clipped_value_loss,
    share_of_loss,
    truncated_importance_weights,
)
from rl_core.algos.masking import Denominators, aggregate, count_denominators, whiten
from rl_core.batch import mini_batches
from rl_core.config.run import RunConfig
from rl_core.errors import out_of_memory_as
from rl_core.learner.experience import Experience
from rl_core.learner.microbatching import Microbatching
from rl_core.learner.optimizer import ModelOptimizer, side_by_side
from rl_core.learner.profiling import measured
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.models.fast_linear import cast_once
from rl_core.models.forward import ForwardPass
from rl_core.models.loading import Models

Name = Literal["actor", "critic"]
"""A model that learns, and the prefix of its metrics."""


class Updater:
    """Updates the models that have an optimizer from a step's experience; holds no other state.

    `forward` has the run's temperature and type. Each of the `ranks` computes the gradient of its
    own rows.
    """

    def __init__(
        self,
        config: RunConfig,
        models: Models,
        optimizers: Mapping[str, ModelOptimizer],
        forward: ForwardPass,
        microbatching: Microbatching,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._config, self._models, self._optimizers = config, models, optimizers
        self._forward, self._microbatching = forward, microbatching

    def __call__(
        self, experience: Experience, *, kl_coef: float, actor_learns: bool
    ) -> dict[str, float]:
        """Does all updates of a step, model after model; returns metrics under verl's names.

        Fills in what the experience leaves to its only update. During the critic's warm-up the
        actor does not learn.
        """
        metrics: dict[str, float] = {}
        for name in self.learners(actor_learns=actor_learns):
            with measured(f"update_{name}", self._microbatching.device, metrics):
                metrics |= self.run_epochs(name, experience, kl_coef)
            if experience.values_follow and name == "critic":
                self.complete_values(experience)
        if experience.is_on_policy:
            self._ranks.add(experience.old_logprobs)  # each has filled in its own rows
        return metrics

    def complete_values(self, experience: Experience) -> None:
        """Adds up ranks' values, whitens the advantages; see `Experience.values_follow`."""
        for tensor in (experience.values, experience.returns, experience.advantages):
            assert tensor is not None
            self._ranks.add(tensor)  # each has filled in its own rows
        experience.advantages.copy_(whiten(experience.advantages, experience.batch.sampled_mask))

    def learners(self, *, actor_learns: bool) -> list[Name]:
        """Returns the models that learn, in this order."""
        critic: list[Name] = [] if self._models.critic is None else ["critic"]
        return [*critic, "actor"] if actor_learns else critic

    def run_epochs(self, name: Name, experience: Experience, kl_coef: float) -> dict[str, float]:
        """Does all updates of a step of one model; returns metrics, means over the updates."""
        actor, optimizer = self._config.actor, self._optimizers[name]
        updates, lr = [], optimizer.lr
        for _ in range(actor.ppo_epochs):
            for rows in mini_batches(experience.batch.group_ids, actor.mini_batch_size):
                is_filled = experience.is_on_policy or experience.values_follow
                mini = experience if is_filled else experience.select(rows)
                updates.append(self._update(name, mini, kl_coef))
        optimizer.end_step()
        means = {
            metric: float(torch.stack([shares[metric] for shares in updates]).mean())
            for metric in updates[0]
        }
        return means | {f"{name}/lr": lr}

    def _update(self, name: Name, mini: Experience, kl_coef: float) -> dict[str, Tensor]:
        """Updates the weights once, from a mini-batch; returns its metrics, scalars."""
        optimizer, phase = self._optimizers[name], f"update_{name}"

        def attempt(micro_batches: list[Tensor]) -> dict[str, Tensor]:
            optimizer.offload()  # after an attempt that ran out of memory late
            metrics = self._ranks.add_shares(self.accumulate(name, mini, micro_batches, kl_coef))
            return metrics | {f"{name}/grad_norm": optimizer.clip()}

        apart = ~self.teaches(name, mini)
        metrics = self._microbatching.run(phase, mini.batch, attempt, apart=apart)
        # Never repeated: weights must move once. `clip` has allocated all memory for it.
        with out_of_memory_as(phase):
            optimizer.step(metrics[f"{name}/grad_norm"])
        return metrics

    def teaches(self, name: Name, mini: Experience) -> Tensor:
        """Returns the rows (bool [B]) that a gradient can come from."""
        actor, algorithm = self._config.actor, self._config.algorithm
        has_other_terms = (
            actor.entropy_coef > 0
            or algorithm.kl_mode == "loss"
            or not actor.formula.needs_advantages
        )
        return mini.teaches | (name == "critic" or has_other_terms)

    def accumulate(
        self, name: Name, mini: Experience, micro_batches: Sequence[Tensor], kl_coef: float
    ) -> dict[str, Tensor]:
        """Sets the weights' `.grad` to a mini-batch's gradient; returns its metrics, scalars.

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
        # AdamW moves weights with a gradient of 0, too, but not those without: one pass has one.
        backward[0] |= not any(backward)
        passes = self._ranks.same_passes(micro_batches, backward)

        def loss_and_metrics(number: int) -> tuple[Tensor, dict[str, Tensor]]:
            rows, has_gradient = passes[number]
            with torch.set_grad_enabled(has_gradient):
                if name == "critic":
                    loss, metrics = self._critic_loss(mini, rows, denominators)
                else:
                    loss, metrics = self._actor_loss(mini, rows, denominators, kl_coef)
                loss = loss * float(number < len(micro_batches))
            return loss, {metric: x.detach() for metric, x in metrics.items()}

        adds_up = len(micro_batches) > 1 and self._ranks.is_alone and not parameters[0].is_cuda
        is_cast = adds_up and self._config.compute_dtype == "bfloat16"
        with (
            side_by_side(parameters) if adds_up else nullcontext(),
            cast_once(self._trunk(name)) if is_cast else nullcontext(),
        ):
            computed = self._microbatching.threads.accumulate(
                parameters, loss_and_metrics, range(len(passes))
            )[: len(micro_batches)]
        return {
            metric: torch.stack([shares[metric] for shares in computed]).sum()
            for metric in computed[0]
        }

    def _trunk(self, name: Name) -> nn.Module:
        if name == "critic":
            assert self._models.critic is not None
            return self._models.critic.backbone
        return cast("nn.Module", self._models.actor.get_decoder())

    def _actor_loss(
        self, mini: Experience, rows: Tensor, denominators: Denominators, kl_coef: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns a micro-batch's shares of the policy's loss and metrics, from a forward pass.

        The loss is the policy loss, less the entropy bonus, plus the KL penalty (`kl_mode=loss`).
        """
        micro, actor, algorithm = mini.select(rows), self._config.actor, self._config.algorithm
        outputs = self._forward(micro.batch, actor=self._models.actor, with_entropy=True)
        logprobs, entropy = outputs.logprobs, outputs.entropy
        assert logprobs is not None
        assert entropy is not None
        old_logprobs, mask = micro.old_logprobs, micro.loss_mask
        if mini.is_on_policy:
            mini.set_old_logprobs(rows, logprobs)
            old_logprobs = logprobs.detach()
        weights = None
        if actor.importance_cap is not None:
            weights = truncated_importance_weights(
                old_logprobs, micro.batch.rollout_logprobs, mask, cap=actor.importance_cap
            )
        given = GivenTokens(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            rollout_logprobs=micro.batch.rollout_logprobs,
            advantages=micro.advantages,
            mask=mask,
            ref_logprobs=micro.ref_logprobs,
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
            "actor/pg_loss": policy.loss,
            "actor/pg_clipfrac": policy.clip_frac,
            "actor/ppo_kl": policy.approx_kl,
            "actor/entropy_loss": aggregate(entropy, mask, "token-mean", denominators),
        }
        if algorithm.kl_mode == "loss" and micro.ref_logprobs is not None:
            kl = kl_estimate(logprobs, micro.ref_logprobs, algorithm.kl_estimator)
            metrics["actor/kl_loss"] = aggregate(kl, mask, aggregation, denominators)
            loss = loss + kl_coef * metrics["actor/kl_loss"]
        return loss, metrics

    def _critic_loss(
        self, mini: Experience, rows: Tensor, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns a micro-batch's shares of the critic's loss and metrics, from a forward pass."""
        micro = mini.select(rows)
        values = self._forward(micro.batch, critic=self._models.critic).values
        assert values is not None
        if mini.values_follow:
            mini.set_values(rows, values, self._config.algorithm)
            micro = mini.select(rows)
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
        return value.loss, {
            "critic/vf_loss": value.loss,
            "critic/vf_clipfrac": value.clip_frac,
            "critic/vpred_mean": value.prediction_mean,
        }
