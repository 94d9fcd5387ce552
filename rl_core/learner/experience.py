"""Stage 5: rollouts -> log-probs and values -> token rewards -> advantages.

Legend: B responses, T response tokens. Nothing here carries gradient or changes any state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.algos import advantages as adv
from rl_core.algos.kl import KlEstimator, kl_estimate
from rl_core.batch import TrainBatch
from rl_core.config.run import AlgorithmConfig, RunConfig
from rl_core.learner.microbatching import Microbatching
from rl_core.learner.optimizer import on_device
from rl_core.learner.profiling import measured
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.models.forward import ForwardPass, TokenOutputs
from rl_core.models.loading import Models


@dataclass(frozen=True)
class Experience:
    """A batch with all that its update needs; all tensors are constants, float32 [B, T]."""

    batch: TrainBatch
    loss_mask: Tensor
    """Tokens that are learned from, bool [B, T]: all sampled ones, unless `mask_truncated`."""
    old_logprobs: Tensor
    """Of the policy before the step's first update; if `is_on_policy`, 0 until that update."""
    is_on_policy: bool
    """The step has one update, whose own forward pass fills `old_logprobs`: the ratio is 1."""
    token_rewards: Tensor
    """The score at the last token, plus each turn's reward at the turn's last token, less the KL
    penalty (`kl_mode=reward`); 0 at the env's tokens."""
    advantages: Tensor
    ref_logprobs: Tensor | None
    kl_estimator: KlEstimator
    values: Tensor | None
    """Of the critic before the step's first update."""
    returns: Tensor | None
    values_follow: bool
    """The critic has one update, whose own forward pass fills values, returns and advantages."""

    @property
    def kl(self) -> Tensor | None:
        """Per-token estimate of the KL to the reference, of the policy before the update."""
        if self.ref_logprobs is None:
            return None
        return kl_estimate(self.old_logprobs, self.ref_logprobs, self.kl_estimator)

    @property
    def teaches(self) -> Tensor:
        """Rows of groups in which a token has an advantage, bool [B]; the others' loss is 0."""
        groups = self.batch.group_ids
        has_advantage = (self.loss_mask & (self.advantages != 0)).any(dim=-1)
        return torch.isin(groups, groups[has_advantage.to(groups.device)])

    def set_old_logprobs(self, rows: Tensor, logprobs: Tensor) -> None:
        """Fills in what the step's only update has computed, [b, T]; see `is_on_policy`."""
        rows = rows.to(self.old_logprobs.device)
        self.old_logprobs[rows, : logprobs.shape[1]] = logprobs.detach()

    def set_values(self, rows: Tensor, values: Tensor, algorithm: AlgorithmConfig) -> None:
        """Fills in what the critic's only update has computed, [b, T]; see `values_follow`.

        The advantages are whitened once all rows are there, see `Updater.complete_values`.
        """
        micro, values = self.select(rows), values.detach()
        raw, returns = adv.generalized_advantages(
            micro.token_rewards,
            values,
            micro.batch.sampled_mask,
            gamma=algorithm.gamma,
            gae_lambda=algorithm.gae_lambda,
        )
        rows = rows.to(self.advantages.device)
        assert self.values is not None
        assert self.returns is not None
        for whole, part in ((self.values, values), (self.returns, returns), (self.advantages, raw)):
            whole[rows, : part.shape[1]] = part

    def select(self, rows: Tensor) -> Experience:
        """Returns the given rows (int64 [b]), trimmed to the longest of them."""
        batch = self.batch.select(rows)
        num_tokens = batch.rollout_logprobs.shape[1]
        rows = rows.to(self.old_logprobs.device)
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        cut: dict[str, Any] = {name: x[rows, :num_tokens] for name, x in tensors.items()}
        return replace(self, batch=batch, **cut)


class ExperienceMaker:
    """Computes what a step's update needs, by forward passes without gradient; changes no model.

    `forward` has the run's temperature and type. Between uses the reference is on `offload_to`,
    if that is given. Each of the `ranks` computes its own rows.
    """

    def __init__(
        self,
        config: RunConfig,
        models: Models,
        forward: ForwardPass,
        microbatching: Microbatching,
        *,
        offload_to: torch.device | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._config, self._models, self._forward = config, models, forward
        self._microbatching, self._device = microbatching, microbatching.device
        # With adapters the reference is the actor without them, and is not moved. A sharded one
        # comes to the device as it is gathered, by FSDP's own offloading.
        moves_whole = ranks.is_alone and not config.model.lora_rank
        self._offload_to = offload_to if moves_whole else None
        if models.reference is not None and self._offload_to is not None:
            models.reference.to(self._offload_to)

    def __call__(
        self, batch: TrainBatch, *, kl_coef: float, is_on_policy: bool
    ) -> tuple[Experience, dict[str, float]]:
        """Returns a step's experience, and its phases' costs; sets `values_follow` if possible.

        The batch is on the learner's device, its groups whole. If the step `is_on_policy`, its
        only update will fill in `old_logprobs` from its own pass.
        """
        costs: dict[str, float] = {}
        old, ref, values = TokenOutputs(), TokenOutputs(), None
        critic, reference = self._models.critic, self._models.reference
        if not is_on_policy:
            with measured("old_log_prob", self._device, costs):
                old = self._outputs("old_log_prob", batch, actor=self._models.actor)
        if reference is not None:
            at_hand: AbstractContextManager[None] = nullcontext()
            if self._offload_to is not None:
                at_hand = on_device(reference, self._device, self._offload_to)
            with measured("ref", self._device, costs), at_hand:
                ref = self._outputs("ref", batch, actor=reference)
        if critic is not None and not self._config.has_one_critic_update:
            with measured("values", self._device, costs):
                values = self._outputs("values", batch, critic=critic).values
        with measured("adv", self._device, costs):
            experience = assemble(
                batch,
                old_logprobs=old.logprobs,
                ref_logprobs=ref.logprobs,
                values=values,
                algorithm=self._config.algorithm,
                kl_coef=kl_coef,
            )
        return experience, costs

    @torch.no_grad()
    def _outputs(self, phase: str, batch: TrainBatch, **models: nn.Module | None) -> TokenOutputs:
        """Returns a forward pass over the batch, computed by ranks and by micro-batches."""

        def attempt(micro_batches: list[Tensor]) -> TokenOutputs:
            whole: dict[str, Tensor] = {}
            number = len(micro_batches)
            passes = [rows for rows, _ in self._ranks.same_passes(micro_batches, [False] * number)]
            computed = self._microbatching.threads.map(
                lambda rows: self._forward(batch.select(rows), **models), passes
            )
            for rows, outputs in list(zip(passes, computed, strict=True))[:number]:
                for name, part in vars(outputs).items():
                    if part is None:
                        continue
                    if name not in whole:
                        whole[name] = part.new_zeros(batch.rollout_logprobs.shape)
                    whole[name][rows.to(self._device), : part.shape[-1]] = part
            return TokenOutputs(**whole)

        outputs = self._microbatching.run(phase, batch, attempt)
        for part in vars(outputs).values():
            if part is not None:
                self._ranks.add(part)  # zeros in the rows of others
        return outputs


def assemble(
    batch: TrainBatch,
    *,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    values: Tensor | None,
    algorithm: AlgorithmConfig,
    kl_coef: float,
) -> Experience:
    """Returns the batch, whose groups must be whole, with token rewards and advantages.

    Log-probs and values are float32 [B, T]. Without `old_logprobs` the step's only update fills
    them in, and a KL penalty in the reward uses the engines'; without `ref_logprobs` there is no
    KL. Only estimator `gae` needs `values`; without them the critic's only update fills them in.
    """
    mask = batch.sampled_mask
    token_rewards = adv.end_rewards(batch.rewards, mask)
    if batch.turn_rewards is not None:
        token_rewards = token_rewards + batch.turn_rewards
    if ref_logprobs is not None and algorithm.kl_mode == "reward":
        logprobs = batch.rollout_logprobs if old_logprobs is None else old_logprobs
        kl = kl_estimate(logprobs, ref_logprobs, algorithm.kl_estimator)
        token_rewards = token_rewards - kl_coef * torch.where(mask, kl, 0.0)
    returns: Tensor | None
    values_follow = algorithm.formula.needs_critic and values is None
    if values_follow:
        values = torch.zeros_like(batch.rollout_logprobs)
        advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    else:
        advantages, returns = _advantages(batch, token_rewards, values, old_logprobs, algorithm)
    # Masked only in the loss: a truncated response still counts in its group's mean.
    is_learned = ~batch.truncated if algorithm.mask_truncated else torch.ones_like(batch.truncated)
    return Experience(
        batch=batch,
        loss_mask=mask & is_learned.unsqueeze(-1),
        old_logprobs=(
            torch.zeros_like(batch.rollout_logprobs) if old_logprobs is None else old_logprobs
        ),
        is_on_policy=old_logprobs is None,
        token_rewards=token_rewards,
        advantages=advantages,
        ref_logprobs=ref_logprobs,
        kl_estimator=algorithm.kl_estimator,
        values=values,
        returns=returns,
        values_follow=values_follow,
    )


def _advantages(
    batch: TrainBatch,
    token_rewards: Tensor,
    values: Tensor | None,
    old_logprobs: Tensor | None,
    algorithm: AlgorithmConfig,
) -> tuple[Tensor, Tensor | None]:
    """Returns advantages, and the critic's targets if there is a critic."""
    formula, mask = algorithm.formula, batch.sampled_mask
    rewards = adv.response_sums(token_rewards, mask)
    if formula.needs_groups and algorithm.outcome_gate:
        mask = mask & adv.outcome_gate(batch.correct, batch.group_ids).unsqueeze(-1)
    given = adv.GivenRewards(
        rewards=rewards,
        outcomes=batch.outcomes,
        correct=batch.correct,
        group_ids=batch.group_ids,
        token_rewards=token_rewards,
        mask=mask,
        values=values,
        old_logprobs=batch.rollout_logprobs if old_logprobs is None else old_logprobs,
        extra_info=[problem.facts for problem in batch.problems],
    )
    options = {name: getattr(algorithm, name) for name in formula.settings}
    estimate = formula.function(given, **options)
    return estimate if formula.needs_critic else (estimate, None)
