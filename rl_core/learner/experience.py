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
from rl_core.config.algorithm import AlgorithmConfig
from rl_core.config.run import RunConfig
from rl_core.learner.microbatching import Microbatching, in_rows
from rl_core.learner.optimizer import on_device
from rl_core.learner.profiling import measured
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.models.forward import ForwardPass
from rl_core.models.loading import Models


@dataclass(frozen=True)
class Experience:
    """A batch with all that its update needs; all tensors are constants, float32 [B, T]."""

    batch: TrainBatch
    loss_mask: Tensor
    """Tokens that are learned from, bool [B, T]: all sampled ones, unless `mask_truncated`."""
    token_rewards: Tensor
    """The score at the last token, plus each turn's reward at the turn's last token, less the KL
    penalty (`kl_mode=reward`); 0 at the env's tokens."""
    old_logprobs: Tensor | None
    """Of the policy before the step's first update; None if it has only one, whose passes compute
    them anyway: a token's ratio is then taken from its pass's own log-probs, and is 1."""
    ref_logprobs: Tensor | None
    kl_estimator: KlEstimator
    """Of the metrics."""
    values: Tensor | None
    """Of the critic before the step's first update; None without a critic, and until its only
    update: the targets are then taken from each pass's own values, see `with_values`."""
    advantages: Tensor | None
    """None until there are values, if the estimator needs them."""
    returns: Tensor | None
    """The critic's targets."""
    teacher_logprobs: Tensor | None = None
    teacher_states: Tensor | None = None
    """[B, T, H] in the type of the teacher's pass, for `teacher.signal=full`."""

    @property
    def kl(self) -> Tensor | None:
        """Per-token estimate of the KL to the reference, of the policy before the update."""
        if self.ref_logprobs is None:
            return None
        assert self.old_logprobs is not None, "known after the actor's update"
        return kl_estimate(self.old_logprobs, self.ref_logprobs, self.kl_estimator)

    @property
    def teaches(self) -> Tensor:
        """Rows of groups in which a token has an advantage, bool [B]; the others' loss is 0."""
        assert self.advantages is not None, "the critic learns first"
        groups = self.batch.group_ids
        has_advantage = (self.loss_mask & (self.advantages != 0)).any(dim=-1)
        return torch.isin(groups, groups[has_advantage.to(groups.device)])

    def with_values(self, values: Tensor, algorithm: AlgorithmConfig) -> Experience:
        """Returns it with values of the critic's only update, and with their advantages."""
        advantages, returns = _advantages(
            self.batch,
            self.batch.outcomes,
            self.token_rewards,
            values,
            self.old_logprobs,
            algorithm,
        )
        return replace(self, values=values, advantages=advantages, returns=returns)

    def select(self, rows: Tensor) -> Experience:
        """Returns the given rows (int64 [b]), trimmed to the longest of them."""
        batch = self.batch.select(rows)
        num_tokens = batch.rollout_logprobs.shape[1]
        rows = rows.to(self.loss_mask.device)
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        cut: dict[str, Any] = {name: x[rows, :num_tokens] for name, x in tensors.items()}
        return replace(self, batch=batch, **cut)


class ExperienceMaker:
    """Computes what a step's update needs, by forward passes without gradient; changes no model.

    `forward` has the run's temperature and type. Between uses reference and teacher are on
    `offload_to`, if that is given. Each of the `ranks` computes its own rows.
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
        frozen = [models.teacher] if config.model.lora_rank else [models.teacher, models.reference]
        self._offload_to = offload_to if ranks.is_alone else None
        self._away = [one for one in frozen if one is not None and self._offload_to is not None]
        for model in self._away:
            model.to(self._offload_to)

    def make(
        self, batch: TrainBatch, *, kl_coef: float, is_on_policy: bool
    ) -> tuple[Experience, dict[str, float]]:
        """Returns a step's experience, and its phases' costs.

        The batch is on the learner's device, its groups whole. If the step `is_on_policy`, there
        are no `old_logprobs`, and if the critic has one update, no values.
        """
        costs: dict[str, float] = {}
        old = ref = values = None
        taught: tuple[Tensor | None, Tensor | None] = (None, None)
        needs_states = self._config.teacher.signal == "full"
        critic, reference = self._models.critic, self._models.reference
        teacher = self._models.teacher
        if not is_on_policy:
            with measured("old_log_prob", self._device, costs):
                old, _ = self._read("old_log_prob", batch, actor=self._models.actor)
        if reference is not None:
            with measured("ref", self._device, costs), self._at_hand(reference):
                ref, _ = self._read("ref", batch, actor=reference)
        if teacher is not None:
            with measured("teacher", self._device, costs), self._at_hand(teacher):
                taught = self._read("teacher", batch, actor=teacher, with_states=needs_states)
        if critic is not None and not self._config.has_one_critic_update:
            with measured("values", self._device, costs):
                values, _ = self._read("values", batch, critic=critic)
        with measured("adv", self._device, costs):
            experience = assemble(
                batch,
                old_logprobs=old,
                ref_logprobs=ref,
                values=values,
                algorithm=self._config.algorithm,
                kl_coef=kl_coef,
                max_response_length=self._config.data.max_response_length,
            )
        logprobs, states = taught
        return replace(experience, teacher_logprobs=logprobs, teacher_states=states), costs

    def _at_hand(self, model: nn.Module) -> AbstractContextManager[None]:
        """Has a model on the device for the block, if it is elsewhere between its uses."""
        if self._offload_to is None or model not in self._away:
            return nullcontext()
        return on_device(model, self._device, self._offload_to)

    @torch.no_grad()
    def _read(self, phase: str, batch: TrainBatch, **model: Any) -> tuple[Tensor, Tensor | None]:
        """Returns a model's log-probs or values, [B, T], and its states if `model` says so.

        They are computed by ranks and micro-batches; states only by one rank.
        """

        def attempt(micro_batches: list[Tensor]) -> tuple[Tensor, Tensor | None]:
            number = len(micro_batches)
            passes = [rows for rows, _ in self._ranks.same_passes(micro_batches, [False] * number)]
            outputs = list(
                self._microbatching.threads.map(
                    lambda rows: self._forward(batch.select(rows), **model), passes
                )
            )
            # The passes after the last micro-batch are only for other ranks.
            per_token = zip(micro_batches, (one.per_token for one in outputs), strict=False)
            states = [one.states for one in outputs if one.states is not None]
            like = batch.rollout_logprobs
            return in_rows(per_token, like), (
                in_rows(zip(micro_batches, states, strict=True), like) if states else None
            )

        per_token, states = self._microbatching.run(phase, batch, attempt)
        return self._ranks.add(per_token), states


def assemble(
    batch: TrainBatch,
    *,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    values: Tensor | None,
    algorithm: AlgorithmConfig,
    kl_coef: float,
    max_response_length: int = 0,
) -> Experience:
    """Returns the batch, whose groups must be whole, with token rewards and advantages.

    Log-probs and values are float32 [B, T]. Without `old_logprobs` a KL penalty in the reward uses
    the engines'; without `ref_logprobs` there is no KL. Without `values`, an estimator that needs
    them waits for those of the critic's only update.
    """
    mask = batch.sampled_mask
    token_rewards = adv.end_rewards(batch.rewards, mask)
    penalties = torch.zeros_like(batch.rewards)
    if algorithm.overlong_tokens:
        penalties = adv.overlong_penalties(
            batch.response_lengths,
            num_tokens=algorithm.overlong_tokens,
            max_length=max_response_length,
        )
        token_rewards = token_rewards + adv.end_rewards(penalties, mask)
    if batch.turn_rewards is not None:
        token_rewards = token_rewards + batch.turn_rewards
    if ref_logprobs is not None and algorithm.kl_mode == "reward":
        logprobs = batch.rollout_logprobs if old_logprobs is None else old_logprobs
        kl = kl_estimate(logprobs, ref_logprobs, algorithm.kl_estimator)
        token_rewards = token_rewards - kl_coef * torch.where(mask, kl, 0.0)
    advantages = returns = None
    if values is not None or not algorithm.formula.needs_critic:
        outcomes = batch.outcomes + penalties
        advantages, returns = _advantages(
            batch, outcomes, token_rewards, values, old_logprobs, algorithm
        )
    # Masked only in the loss: a truncated response still counts in its group's mean.
    is_learned = ~batch.truncated if algorithm.mask_truncated else torch.ones_like(batch.truncated)
    if batch.unscored is not None:
        is_learned = is_learned & ~batch.unscored
    serves_as_loss = algorithm.kl_mode == "loss" and algorithm.kl_estimator == "k2"
    return Experience(
        batch=batch,
        loss_mask=mask & is_learned.unsqueeze(-1),
        token_rewards=token_rewards,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        # What serves as a loss (k2) is no estimate of the size.
        kl_estimator="k3" if serves_as_loss else algorithm.kl_estimator,
        values=values,
        advantages=advantages,
        returns=returns,
    )


def _advantages(
    batch: TrainBatch,
    outcomes: Tensor,
    token_rewards: Tensor,
    values: Tensor | None,
    old_logprobs: Tensor | None,
    algorithm: AlgorithmConfig,
) -> tuple[Tensor, Tensor | None]:
    """Returns advantages, and the critic's targets if there is a critic.

    `outcomes` are rewards without the KL penalty, for estimators that compare a group's, float [B].
    """
    formula, mask = algorithm.formula, batch.sampled_mask
    rewards = adv.response_sums(token_rewards, mask)
    group_ids = batch.group_ids
    if batch.unscored is not None:
        group_ids, is_compared = adv.without_unscored(batch.unscored, group_ids)
        mask = mask & (is_compared if formula.needs_groups else ~batch.unscored).unsqueeze(-1)
    if formula.needs_groups and algorithm.outcome_gate:
        mask = mask & adv.outcome_gate(batch.correct, group_ids).unsqueeze(-1)
    given = adv.GivenRewards(
        rewards=rewards,
        outcomes=outcomes,
        correct=batch.correct,
        group_ids=group_ids,
        token_rewards=token_rewards,
        mask=mask,
        values=values,
        old_logprobs=batch.rollout_logprobs if old_logprobs is None else old_logprobs,
        extra_info=[problem.facts for problem in batch.problems],
    )
    options = {name: getattr(algorithm, name) for name in formula.settings}
    estimate = formula.function(given, **options)
    return estimate if formula.needs_critic else (estimate, None)
