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
from rl_core.algos.masking import masked_sum
from rl_core.batch import TrainBatch
from rl_core.config.algorithm import AlgorithmConfig
from rl_core.config.run import RunConfig
from rl_core.learner.microbatching import Microbatching, in_rows
from rl_core.learner.optimizer import on_device
from rl_core.models.forward import ForwardPass
from rl_core.models.loading import Models


@dataclass(frozen=True)
class Experience:
    """A batch with all that its update needs; all tensors are constants, most float32 [B, T]."""

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
    update: the targets are then taken from each pass's own values."""
    advantages: Tensor | None
    """None until there are values, if the estimator needs them."""
    returns: Tensor | None
    """The critic's targets."""
    outcomes: Tensor
    """The total reward of each response less a penalty for its length, without that for its KL,
    float32 [B]: what estimators compare within a group."""
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
    def kl_per_response(self) -> float:
        """The mean over responses of their summed KL, in nats; 0 without a reference."""
        kl = self.kl
        return 0.0 if kl is None else float(masked_sum(kl, self.batch.sampled_mask, dim=-1).mean())

    @property
    def logprob_gap(self) -> Tensor:
        """How far learner and engine disagree at each token, in nats."""
        assert self.old_logprobs is not None, "known after the actor's update"
        return (self.old_logprobs - self.batch.rollout_logprobs).abs()

    @property
    def teaches(self) -> Tensor:
        """Rows of groups in which a token has an advantage, bool [B]; the others' loss is 0."""
        assert self.advantages is not None, "the critic learns first"
        groups = self.batch.group_ids
        has_advantage = (self.loss_mask & (self.advantages != 0)).any(dim=-1)
        return torch.isin(groups, groups[has_advantage.to(groups.device)])

    def with_advantages(self, values: Tensor | None, algorithm: AlgorithmConfig) -> Experience:
        """Returns it with advantages, and with the critic's values and targets if there is one."""
        formula = algorithm.formula
        batch = self.batch
        mask = batch.sampled_mask
        rewards = adv.response_sums(self.token_rewards, mask)
        group_ids = batch.group_ids
        if batch.unscored is not None:
            group_ids, is_compared = adv.without_unscored(batch.unscored, group_ids)
            mask = mask & (is_compared if formula.needs_groups else ~batch.unscored).unsqueeze(-1)
        if formula.needs_groups and algorithm.outcome_gate:
            mask = mask & adv.outcome_gate(batch.correct, group_ids).unsqueeze(-1)
        given = adv.GivenRewards(
            rewards=rewards,
            outcomes=self.outcomes,
            correct=batch.correct,
            group_ids=group_ids,
            token_rewards=self.token_rewards,
            mask=mask,
            values=values,
            old_logprobs=batch.rollout_logprobs if self.old_logprobs is None else self.old_logprobs,
            extra_info=[problem.facts for problem in batch.problems],
        )
        options = {name: getattr(algorithm, name) for name in formula.settings}
        estimate = formula.function(given, **options)
        advantages, returns = estimate if formula.needs_critic else (estimate, None)
        return replace(self, values=values, advantages=advantages, returns=returns)

    def select(self, rows: Tensor) -> Experience:
        """Returns the given rows (int64 [b]), trimmed to the longest of them."""
        batch = self.batch.select(rows)
        num_tokens = batch.rollout_logprobs.shape[1]
        rows = rows.to(self.loss_mask.device)
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        cut: dict[str, Any] = {
            name: x[rows] if x.ndim == 1 else x[rows, :num_tokens] for name, x in tensors.items()
        }
        return replace(self, batch=batch, **cut)


class Reader:
    """Reads batches with one model or another, without gradient; changes none.

    `forward` has the run's temperature and type. Between uses reference and teacher are on
    `offload_to`, if that is given. Each rank reads its own rows.
    """

    def __init__(
        self,
        config: RunConfig,
        models: Models,
        forward: ForwardPass,
        microbatching: Microbatching,
        offload_to: torch.device | None,
    ) -> None:
        self._forward = forward
        self._microbatching = microbatching
        # With adapters the reference is the actor without them, and is not moved. A sharded one
        # comes to the device as it is gathered, by FSDP's own offloading.
        frozen = [models.teacher] if config.model.lora_rank else [models.teacher, models.reference]
        self._offload_to = offload_to if microbatching.ranks.is_alone else None
        self._away = [one for one in frozen if one is not None and self._offload_to is not None]
        for model in self._away:
            model.to(self._offload_to)

    @torch.no_grad()
    def read(self, phase: str, batch: TrainBatch, **model: Any) -> tuple[Tensor, Tensor | None]:
        """Returns a model's log-probs or values, [B, T], and its states if `with_states`.

        The model is `actor` or `critic`, as in `forward_pass`. Results are computed by ranks and
        micro-batches; states only by one rank.
        """
        ranks = self._microbatching.ranks

        def attempt(micro_batches: list[Tensor]) -> tuple[Tensor, Tensor | None]:
            passes = ranks.same_passes(micro_batches, [False] * len(micro_batches))
            outputs = list(
                self._microbatching.threads.map(
                    lambda rows: self._forward(batch.select(rows), **model),
                    [rows for rows, _ in passes],
                )
            )
            # The passes after the last micro-batch are only for other ranks.
            per_token = zip(micro_batches, (one.per_token for one in outputs), strict=False)
            states = [one.states for one in outputs if one.states is not None]
            like = batch.rollout_logprobs
            return in_rows(per_token, like), (
                in_rows(zip(micro_batches, states, strict=True), like) if states else None
            )

        with self._at_hand(model.get("actor")):
            per_token, states = self._microbatching.run(phase, batch, attempt)
        return ranks.add(per_token), states

    def _at_hand(self, model: nn.Module | None) -> AbstractContextManager[None]:
        """Has a model on the device for the block, if it is elsewhere between its uses."""
        if model is None or self._offload_to is None or model not in self._away:
            return nullcontext()
        return on_device(model, self._microbatching.device, self._offload_to)


def assemble(
    batch: TrainBatch,
    *,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    values: Tensor | None,
    config: RunConfig,
    kl_coef: float,
) -> Experience:
    """Returns the batch, whose groups must be whole, with token rewards and advantages.

    Log-probs and values are float32 [B, T]. Without `old_logprobs` a KL penalty in the reward uses
    the engines'; without `ref_logprobs` there is no KL. Without `values`, an estimator that needs
    them waits for those of the critic's only update.
    """
    algorithm = config.algorithm
    mask = batch.sampled_mask
    token_rewards = adv.end_rewards(batch.rewards, mask)
    outcomes = batch.outcomes
    lengths = batch.response_lengths
    longest = config.data.max_response_length
    penalties = torch.zeros_like(outcomes)
    if num_tokens := algorithm.overlong_tokens:
        penalties += adv.overlong_penalties(lengths, num_tokens=num_tokens, max_length=longest)
    if weight := algorithm.length_penalty:
        penalties += adv.length_penalties(lengths, batch.correct, weight=weight, max_length=longest)
    if penalties.any():
        token_rewards = token_rewards + adv.end_rewards(penalties, mask)
        outcomes = outcomes + penalties
    if batch.turn_rewards is not None:
        token_rewards = token_rewards + batch.turn_rewards
    if ref_logprobs is not None and algorithm.kl_mode == "reward":
        logprobs = batch.rollout_logprobs if old_logprobs is None else old_logprobs
        kl = kl_estimate(logprobs, ref_logprobs, algorithm.kl_estimator)
        token_rewards = token_rewards - kl_coef * torch.where(mask, kl, 0.0)
    # Masked only in the loss: a truncated response still counts in its group's mean.
    is_learned = ~batch.truncated if algorithm.mask_truncated else torch.ones_like(batch.truncated)
    if batch.unscored is not None:
        is_learned = is_learned & ~batch.unscored
    serves_as_loss = algorithm.kl_mode == "loss" and algorithm.kl_estimator == "k2"
    experience = Experience(
        batch=batch,
        loss_mask=mask & is_learned.unsqueeze(-1),
        token_rewards=token_rewards,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        # What serves as a loss (k2) is no estimate of the size.
        kl_estimator="k3" if serves_as_loss else algorithm.kl_estimator,
        values=None,
        advantages=None,
        returns=None,
        outcomes=outcomes,
    )
    if values is None and algorithm.formula.needs_critic:
        return experience
    return experience.with_advantages(values, algorithm)
