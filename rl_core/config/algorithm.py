"""Settings of the algorithm: how rewards become advantages, these a loss, and that an update.

The names that `algorithm.estimator` and `actor.policy_loss` may have, and what comes with each, are
the tables of `rl_core/algos/`. `algorithm.estimator=module:function` and `actor.policy_loss=
module:function` name functions of the user's: their module is loaded when the learner needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    PlainSerializer,
    WithJsonSchema,
    WrapValidator,
)

from rl_core.algos.advantages import ESTIMATORS, Estimator, GivenRewards
from rl_core.algos.importance import Level, Outside, importance_weights, off_policy_kept
from rl_core.algos.losses import LOSSES, GivenTokens, Loss, TokenLoss
from rl_core.algos.masking import Aggregation
from rl_core.section import Section, rule
from rl_core.system.named_code import load_function, names_code

LrSchedule = Literal["constant", "linear", "cosine"]
OptimizerName = Literal["adamw", "adamw_8bit"]
_CLIPS = ("clip_eps_low", "clip_eps_high")


def _one_of(table: Mapping[str, Any]) -> Any:
    """Returns the type of a setting that names a row of a table, or `module:function`."""
    form = {"anyOf": [{"enum": [*table]}, {"type": "string", "description": "module:function"}]}
    return Annotated[
        Literal[tuple(table)],
        WrapValidator(lambda name, validate: name if names_code(name) else validate(name)),
        PlainSerializer(str, return_type=str),
        WithJsonSchema(form),
    ]


if TYPE_CHECKING:
    from torch import Tensor

    EstimatorName = str
    LossName = str
else:
    EstimatorName = _one_of(ESTIMATORS)
    LossName = _one_of(LOSSES)


class AlgorithmConfig(Section):
    """How rewards become advantages."""

    estimator: EstimatorName = "gae"
    """How advantages are computed: `gae` is PPO with a critic, the others do without one; `distill`
    has none, and only `teacher.path` teaches; `module:function` is one of your own."""
    options: dict[str, Any] = Field({})
    """Keywords for an estimator or a policy loss of your own: {NAME: VALUE}."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token; 1 values a late reward as much as an early one."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """GAE's lambda: 1 uses only the returns, smaller values rely more on the critic."""
    group_size: int = Field(1, ge=1)
    """Rollouts per prompt; the group estimators need at least 2."""
    kl_mode: Literal["reward", "loss", "none"] = "reward"
    """KL to the reference as a penalty in the reward, as a term of the loss, or not at all."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of KL per token: `k1` plain, `k2` squared, `k3` never negative (low variance). As a
    loss only `k2` has the gradient of the KL."""
    kl_coef: float = Field(0.001, ge=0)
    """Weight of the KL to the reference; the adaptive controller starts from it."""
    kl_controller: Literal["fixed", "adaptive"] = "fixed"
    """Whether `kl_coef` stays as it is, or follows `kl_target`."""
    kl_target: float = Field(6.0, gt=0)
    """Adaptive controller: target KL per response, in nats."""
    kl_horizon: int = Field(10_000, ge=1)
    """Adaptive controller: the more rollouts, the slower the coefficient follows."""
    resample_rounds: int = Field(0, ge=0)
    """Group estimators: most rounds to replace groups without spread by other problems' groups."""
    overlong_tokens: int = Field(0, ge=0)
    """The reward falls over so many of the last tokens up to the longest response, by 1 at its end
    (DAPO); 0: it does not. `critic/score` and accuracy stay as they are."""
    length_penalty: float = Field(0.0, ge=0, le=0.5)
    """What a right response of `data.max_response_length` tokens loses of its reward, a shorter one
    in proportion, a wrong one nothing. `critic/score` and accuracy stay as they are."""
    mask_truncated: bool = False
    """Responses cut off at the length limit teach nothing (overlong filtering)."""
    outcome_gate: bool = True
    """Group estimators: a group whose responses all fail gets no advantage from format credit."""

    @property
    def formula(self) -> Estimator:
        """The estimator's row in the table; of one of your own, a row like those."""
        users = Estimator(partial(own_advantages, self.estimator), settings=("options",))
        return ESTIMATORS.get(self.estimator, users)

    @property
    def has_reference(self) -> bool:
        """Whether the policy is compared with the model that it started from."""
        counts = self.kl_mode == "loss" or (
            self.kl_mode == "reward" and self.estimator != "distill"
        )
        return counts and self.kl_coef > 0


class ActorConfig(Section):
    """The policy's update."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate of the policy (AdamW), after the warm-up."""
    lr_schedule: LrSchedule = "constant"
    """After the warm-up; `linear` and `cosine` fall to 0 at `trainer.total_steps`."""
    warmup_steps: int = Field(0, ge=0)
    """Training steps until `lr` is reached, linearly from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's, decoupled from the gradient."""
    optimizer: OptimizerName = "adamw"
    """`adamw_8bit` keeps both moments, the critic's too, in a byte each: 2 bytes per weight that
    learns in place of 8. It needs the package `bitsandbytes`."""
    mini_batch_size: int = Field(128, ge=1)
    """Prompts per optimizer step."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Padded tokens per forward pass, at most: fewer in a phase that ran out of memory.

    Changes memory and speed, never the result.
    """
    ppo_epochs: int = Field(1, ge=1)
    """Passes over a step's rollouts."""
    policy_loss: LossName = "ppo"
    """`ppo`: clipped ratio per token; `gspo`: one ratio per response; `cispo`: clips the weight, so
    every token has a gradient; `dppo`: bounds how far a token's probability moves from the
    engine's; `module:function`: one of your own."""
    clip_eps_low: float | None = Field(None, gt=0, le=1)
    """How far a ratio may fall below 1 before it is clipped; null is the loss's own: 0.2 for `ppo`,
    3e-4 for `gspo`, 1 for `cispo`, 0.2 (of probability) for `dppo`."""
    clip_eps_high: float | None = Field(None, gt=0)
    """How far a ratio may rise above 1, with 0.28 DAPO's clip-higher; null is the loss's own: 0.2
    for `ppo`, 4e-4 for `gspo`, 4 for `cispo`, 0.2 (of probability) for `dppo`."""
    dual_clip: float | None = Field(3.0, gt=1)
    """`ppo`: a bad response pushes a token away with at most so many times its advantage, however
    far the ratio has risen; null is no limit."""
    entropy_coef: float = Field(0.001, ge=0)
    """Weight of the entropy bonus: more keeps responses more varied."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest norm of the policy's gradient; a longer one is scaled down."""
    importance_cap: float | None = Field(2.0, ge=1)
    """Largest importance weight of a token (learner over rollout); null: no correction."""
    importance_low: float | None = Field(None, gt=0, le=1)
    """Smallest importance weight; null: none."""
    importance_level: Level = "token"
    """What has a weight: each `token`; a whole response (`sequence`: the product of its tokens',
    with a cap of 3 or so); or `geometric`: a response is kept or dropped by their mean, within
    bounds such as 0.99 and 1.01."""
    importance_outside: Outside = "clip"
    """A weight outside its bounds is set to the bound, or its tokens teach nothing (`drop`)."""
    offpolicy_mask: float | None = Field(None, gt=0)
    """A response with a negative advantage teaches nothing if the policy gives its tokens less
    than the engine did, by more than this on average, in nats (0.05, say); null: all teach."""
    loss_aggregation: Aggregation | None = None
    """What has equal weight: all tokens, or all responses (their tokens summed, averaged, or summed
    and divided by `data.max_response_length`). null is the algorithm's own: `seq-mean-token-mean`
    for `gspo`, `seq-mean-token-sum-norm` for `dr_grpo` and `maxrl`, else `token-mean`."""

    @property
    def formula(self) -> Loss:
        """The policy loss's row in the table; of one of your own, a row like those."""
        users = Loss(partial(own_loss, self.policy_loss), needs_advantages=False)
        return LOSSES.get(self.policy_loss, users)

    def token_weights(
        self, old: Tensor, current: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor | None:
        """Returns what each token's loss is multiplied by, float [B, T]; None: by 1.

        Log-probs from before the update, of now and of the engine; see algos/importance.py.
        """
        weights = None
        if self.importance_cap is not None:
            weights = importance_weights(
                old - rollout,
                mask,
                level=self.importance_level,
                low=self.importance_low,
                cap=self.importance_cap,
                outside=self.importance_outside,
            )
        if self.offpolicy_mask is not None:
            kept = off_policy_kept(current, rollout, advantages, mask, delta=self.offpolicy_mask)
            weights = kept if weights is None else weights * kept
        return weights

    @property
    def clips(self) -> dict[str, float]:
        """How far a ratio may fall below 1 and rise above it: as set, else the loss's own."""
        chosen = {name: getattr(self, name) for name in _CLIPS}
        return {
            name: getattr(self.formula, name) if clip is None else clip
            for name, clip in chosen.items()
        }

    @rule
    def _clips_what_moves(self) -> Iterator[str]:
        if names_code(self.policy_loss):
            for key in _CLIPS:
                if (clip := getattr(self, key)) is not None:
                    yield (
                        f"actor.{key}={clip:g} is for a loss of ours: algorithm.options="
                        f"{{{key}: {clip:g}}} hands it to actor.policy_loss={self.policy_loss}"
                    )
        name = self.policy_loss
        limit = self.formula.largest_clip
        for key, clip in self.clips.items():
            if limit is not None and clip > limit:
                yield (
                    f"actor.{key}={clip:g} would clip nothing with actor.policy_loss={name}, whose "
                    f"ratio is the mean of a response's: use at most {limit:g}, or null for its own"
                )
        if self.formula.ratio_to_engine and self.importance_cap is not None:
            yield (
                f"actor.importance_cap={self.importance_cap:g} would correct for the engine twice, "
                f"as actor.policy_loss={name} does it already: use null"
            )
        if self.importance_level == "geometric" and self.importance_outside == "clip":
            yield (
                "actor.importance_level=geometric keeps or drops a response: set "
                "actor.importance_outside=drop importance_low=0.99 importance_cap=1.01"
            )
        if self.formula.aggregation is not None and self.loss_aggregation == "token-mean":
            yield (
                "actor.loss_aggregation=token-mean weighs a response by its length, and "
                f"actor.policy_loss={name} has one ratio for it: use {self.formula.aggregation}"
            )


class TeacherConfig(Section):
    """On-policy distillation: a model that says of each token of the policy's how likely it is."""

    path: str | None = None
    """The teacher, as `model.path` or `RUN/best`; it must have the policy's tokens. null: none."""
    signal: Literal["tokens", "full"] = "tokens"
    """`tokens`: its log-probs of the sampled tokens, as advantages; `full`: the KL to it over the
    whole vocabulary, as a loss, which has less noise and costs a second output embedding."""
    coef: float = Field(1.0, gt=0)
    """Weight of the teacher's term, added to the advantage (0 with `estimator=distill`)."""
    bound: float = Field(10.0, gt=0)
    """With `tokens`, the largest difference of log-probs that counts, in nats per token."""
    load_in_4bit: bool = False
    """The teacher's linear layers take 0.56 bytes per weight instead of 4 (NF4, package
    `bitsandbytes`): it teaches what its rounded weights compute."""


class CriticConfig(Section):
    """The value model's update (estimator `gae` only)."""

    lr: float = Field(1e-5, gt=0)
    """Learning rate of the critic (AdamW)."""
    lr_schedule: LrSchedule = "constant"
    """As the policy's: `linear` and `cosine` fall to 0 at `trainer.total_steps`."""
    warmup_steps: int = Field(0, ge=0)
    """First steps of the run in which only the critic learns."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's, decoupled from the gradient."""
    value_clip: float = Field(0.5, gt=0)
    """How far a value may move from the old one before the loss stops following."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest norm of the critic's gradient."""


def own_advantages(name: str, given: GivenRewards, *, options: Mapping[str, Any]) -> Tensor:
    """Returns what the user's estimator returns, [B, T]; of [B] each token gets the response's."""
    advantages: Tensor = load_function(name)(given, **options)
    per_token = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    return per_token.to(given.mask.device).where(given.mask, 0.0)


def own_loss(name: str, given: GivenTokens, **options: Any) -> TokenLoss:
    """Returns what the user's policy loss returns; of a plain tensor [b, T] no token is clipped."""
    loss = load_function(name)(given, **options)
    if isinstance(loss, TokenLoss):
        return loss
    return TokenLoss(loss, is_clipped=given.mask.new_zeros(given.mask.shape))
