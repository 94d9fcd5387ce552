"""Every setting of a run: its default, its bound and its unit, validated once at the start.

Defaults are those of a TinyZero reproduction on one GPU; presets
(`flows/settings/conf/preset/`) hold only what differs. Models are frozen: nothing changes a
setting in mid-run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from rl_core.config.model import BaseModelConfig, ModelConfig, SftConfig
from rl_core.config.operations import (
    BudgetConfig,
    CheckpointsConfig,
    EvaluationConfig,
    RetryConfig,
    StorageConfig,
    TrainerConfig,
    WatchdogConfig,
)
from rl_core.config.rollout import ResourcesConfig, RolloutConfig
from rl_core.envs import DEFAULT_ENV, ENVS, find_env
from rl_core.envs.text_env import TextEnv
from rl_core.section import Section
from rl_core.system.devices import has_fast_bfloat16

LrSchedule = Literal["constant", "linear", "cosine"]
OptimizerName = Literal["adamw", "adamw_8bit"]
MAY_DIFFER: Final[dict[str, bool | set[str]]] = {
    **dict.fromkeys(("run_id", "storage", "checkpoints", "budget", "retry", "watchdog"), True),
    "trainer": {"stop_grace_s", "logger", "wandb_project", "wandb_mode"},
}
"""Settings that may differ if a run continues: they say where it is kept, how long it may take and
how it is watched and shown, not what is learned."""
GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline")


def _as_list(value: Any) -> Any:
    """Returns a list: one name is a list of one, null an empty one."""
    return () if value is None else (value,) if isinstance(value, str) else value


Files = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


def _of_its_env(value: Any, validate: ValidatorFunctionWrapHandler) -> TextEnv:
    """Returns the settings as the model of the env that they name, which checks them."""
    if isinstance(value, TextEnv) or not isinstance(value, Mapping):
        checked: TextEnv = validate(value)
        return checked
    env = find_env(value.get("name"), imports=False)
    settings = env.model_validate(value)
    if settings.max_turns > 1 and not env.overrides(TextEnv.reply):
        raise ValueError(
            f"env.max_turns={settings.max_turns}: env={settings.name} answers no response, so it "
            "must be 1"
        )
    return settings


EnvConfig = Annotated[SerializeAsAny[TextEnv], WrapValidator(_of_its_env)]


class DataConfig(Section):
    """The data set and how it is fed."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder under `<storage.root>/data`; by default the env's name and a hash of what made it."""
    train_files: Files = ()
    """Your own problems, by default none: paths or globs of parquet or JSON lines, or OWNER/NAME of
    a Hugging Face data set."""
    test_files: Files = ()
    """Files of your test split, used completely; by default the rows after the first `train_size`
    (if there are fewer, the last `test_size`)."""
    train_size: int = Field(327_680, ge=1)
    """Rows of the train split; of own files, at most (ignored by GSM8K unless `env.source=toy`)."""
    test_size: int = Field(1_024, ge=1)
    """Rows of the test split (ignored likewise, and with `test_files`)."""
    seed: int = Field(0, ge=0)
    """Seed of the generated problems, apart from the run's seed so that runs share their data."""
    curriculum: Literal["pass_rate"] | None = None
    """`pass_rate` mostly skips problems that are nearly always or never solved, as measured on them
    and on similar ones; null asks all, each once per epoch."""
    train_batch_size: int = Field(256, ge=1)
    """Prompts per step; with `algorithm.group_size` n, n times as many rollouts."""
    max_prompt_length: int = Field(256, ge=1)
    """Longest prompt, in tokens; a longer one fails validation."""
    max_response_length: int = Field(1_024, ge=1)
    """Longest response, in tokens; a longer one is cut."""

    @model_validator(mode="after")
    def _tests_what_it_trains(self) -> DataConfig:
        if self.test_files and not self.train_files:
            raise ValueError(
                f"data.test_files={list(self.test_files)} needs data.train_files beside it"
            )
        return self


class AlgorithmConfig(Section):
    """How rewards become advantages."""

    estimator: Literal[
        "gae", "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
    ] = "gae"
    """How advantages are computed: `gae` is PPO with a critic, the others do without one."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token; 1 values a late reward as much as an early one."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """GAE's lambda: 1 uses only the returns, smaller values rely more on the critic."""
    group_size: int = Field(1, ge=1)
    """Rollouts per prompt; the group estimators need at least 2."""
    kl_mode: Literal["reward", "loss", "none"] = "reward"
    """KL to the reference as a penalty in the reward, as a term of the loss, or not at all."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of KL per token: `k1` plain, `k2` squared, `k3` never negative (low variance)."""
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
    mask_truncated: bool = False
    """Responses cut off at the length limit teach nothing (overlong filtering)."""
    outcome_gate: bool = True
    """Group estimators: a group whose responses all fail gets no advantage from format credit."""

    @property
    def has_reference(self) -> bool:
        """Whether the policy is compared with the model that it started from."""
        return self.kl_mode != "none" and self.kl_coef > 0


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
    policy_loss: Literal["ppo", "gspo", "cispo"] = "ppo"
    """`gspo` has one ratio per response, and needs clips of about 3e-4; `cispo` clips weights."""
    clip_eps_low: float = Field(0.2, gt=0, lt=1)
    """How far a token's ratio may fall below 1 before it is clipped."""
    clip_eps_high: float = Field(0.2, gt=0)
    """How far a token's ratio may rise above 1; more than `clip_eps_low` is DAPO's clip-higher."""
    entropy_coef: float = Field(0.001, ge=0)
    """Weight of the entropy bonus: more keeps responses more varied."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest norm of the policy's gradient; a longer one is scaled down."""
    importance_cap: float | None = Field(2.0, ge=1)
    """Largest importance weight of a token (learner over rollout); null: no correction."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = (
        "token-mean"
    )
    """What has equal weight: all tokens, or all responses (their tokens summed, or averaged)."""


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


class RunConfig(Section):
    """One run, from puzzles to report."""

    preset: str = "quickstart"
    """One of the presets, or a YAML file of your own: settings to start from."""
    run_id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run's folder; an existing one is continued. By default a time and a word."""
    seed: int = Field(0, ge=0)
    """Seed of order, sampling and fresh weights: the same seed repeats a run."""
    storage: StorageConfig = StorageConfig()
    env: EnvConfig = ENVS[DEFAULT_ENV]()
    """The family of problems, chosen by `env=countdown` or `env=gsm8k`."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    base_model: BaseModelConfig = BaseModelConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    actor: ActorConfig = ActorConfig()
    critic: CriticConfig = CriticConfig()
    sft: SftConfig = SftConfig()
    rollout: RolloutConfig = RolloutConfig()
    resources: ResourcesConfig = ResourcesConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    retry: RetryConfig = RetryConfig()
    budget: BudgetConfig = BudgetConfig()
    watchdog: WatchdogConfig = WatchdogConfig()

    def learns_the_same(self, other: RunConfig) -> bool:
        """Says whether one run can have begun with these settings and continue with the others."""
        ours, theirs = (config.model_dump(exclude=MAY_DIFFER) for config in (self, other))
        return ours == theirs

    @property
    def compute_dtype(self) -> Literal["float32", "bfloat16"]:
        """`model.dtype`; for `auto`, the type for the hardware of this process."""
        if self.model.dtype != "auto":
            return self.model.dtype
        return "bfloat16" if self.resources.learner_gpus or has_fast_bfloat16() else "float32"

    @property
    def has_one_update(self) -> bool:
        """Whether a step's log-probs can be those of its only update, which saves a pass.

        A KL penalty in the reward needs them before the update: then the engines' must be equal.
        """
        algorithm = self.algorithm
        in_reward = algorithm.kl_mode == "reward" and algorithm.kl_coef > 0
        engines_agree = self.compute_dtype == "float32" and not self.rollout.staleness
        return self._updates_once and (engines_agree or not in_reward)

    @property
    def has_one_critic_update(self) -> bool:
        """Whether a step's values can be those of its only update, which saves a pass."""
        return self.algorithm.estimator == "gae" and self._updates_once

    @property
    def _updates_once(self) -> bool:
        fills_batch = self.actor.mini_batch_size == self.data.train_batch_size
        return fills_batch and self.actor.ppo_epochs == 1

    @model_validator(mode="after")
    def _fills_its_batches(self) -> RunConfig:
        batch, mini = self.data.train_batch_size, self.actor.mini_batch_size
        if mini > batch or batch % mini:
            raise ValueError(
                f"actor.mini_batch_size={mini} must divide data.train_batch_size={batch}: "
                f"a mini-batch left unfilled would scale gradients by {(batch % mini) / mini:.3g}"
            )
        if self.env.is_generated and batch > self.data.train_size:
            raise ValueError(
                f"data.train_batch_size={batch} is above data.train_size={self.data.train_size}: "
                "no step could be filled"
            )
        return self

    @model_validator(mode="after")
    def _tunes_a_given_model(self) -> RunConfig:
        if self.sft.data is not None and self.model.path is None:
            raise ValueError(
                f"sft.data={self.sft.data} fine-tunes a given model, and the home-made one is "
                "taught already: set model.path, or leave sft.data out"
            )
        return self

    @model_validator(mode="after")
    def _has_work_for_its_ranks(self) -> RunConfig:
        ranks, gpus = self.resources.learner_ranks, self.resources.learner_gpus
        mini = self.actor.mini_batch_size
        if mini < ranks:
            raise ValueError(
                f"resources.learner_ranks={ranks} divide the prompts of a mini-batch, and "
                f"actor.mini_batch_size={mini} leaves some without any: use at least "
                f"{ranks}, or at most {mini} ranks"
            )
        if ranks > 1 and gpus not in (0, 1):
            raise ValueError(
                f"resources.learner_gpus={gpus:g} must be 1 (a card for each rank) or 0 (the CPU) "
                f"with resources.learner_ranks={ranks}"
            )
        return self

    @model_validator(mode="after")
    def _knows_how_to_learn(self) -> RunConfig:
        estimator, group_size = self.algorithm.estimator, self.algorithm.group_size
        if estimator in GROUP_ESTIMATORS and group_size < 2:
            raise ValueError(
                f"algorithm.estimator={estimator} compares the responses to one prompt, and one "
                f"alone teaches nothing: algorithm.group_size={group_size} must be at least 2"
            )
        if estimator not in GROUP_ESTIMATORS and self.algorithm.resample_rounds:
            raise ValueError(
                f"algorithm.resample_rounds={self.algorithm.resample_rounds} replaces groups "
                f"without spread, which algorithm.estimator={estimator} does not know: use 0"
            )
        warmup, steps = self.critic.warmup_steps, self.trainer.total_steps
        if estimator == "gae" and steps is not None and warmup >= steps:
            raise ValueError(
                f"critic.warmup_steps={warmup} leaves the policy none of trainer.total_steps="
                f"{steps} to learn in: use at most {steps - 1}"
            )
        if self.algorithm.kl_mode == "loss" and self.algorithm.kl_estimator == "k1":
            raise ValueError(
                "algorithm.kl_estimator=k1 has no gradient on average, so as a loss it would not "
                "hold the policy: use k2 or k3, or algorithm.kl_mode=reward"
            )
        for name, section in (("actor", self.actor), ("critic", self.critic)):
            if section.lr_schedule != "constant" and self.trainer.total_steps is None:
                raise ValueError(
                    f"{name}.lr_schedule={section.lr_schedule} ends with the run: "
                    "trainer.total_steps must say when that is"
                )
        return self

    @model_validator(mode="after")
    def _knows_when_to_generate(self) -> RunConfig:
        staleness = self.rollout.staleness
        if self.rollout.sleep and (staleness or self.resources.rollout_gpus == 0):
            raise ValueError(
                "rollout.sleep=true frees a GPU while the learner works: it needs "
                "resources.rollout_gpus above 0 and rollout.staleness=0"
            )
        if staleness and self.actor.importance_cap is None:
            raise ValueError(
                f"rollout.staleness={staleness} learns from the responses of an older policy: "
                "actor.importance_cap=null must be a number, so that this is corrected"
            )
        return self

    @model_validator(mode="after")
    def _splits_engines_over_whole_cards(self) -> RunConfig:
        parts, share = self.rollout.tensor_parallel_size, self.resources.rollout_gpus
        if parts > 1 and share not in (0, 1):
            raise ValueError(
                f"rollout.tensor_parallel_size={parts} splits an engine over {parts} GPUs: "
                f"resources.rollout_gpus={share:g}, of each, must be 1 (or 0, on a CPU)"
            )
        return self
