"""Every setting of a run: its default, its bound and its unit, validated once at the start.

Defaults are those of a TinyZero reproduction on one GPU; presets
(`flows/settings/conf/preset/`) hold only what differs. Models are frozen: nothing changes a
setting in mid-run.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from rl_core.algos.masking import Aggregation
from rl_core.config.algorithm import ActorConfig, AlgorithmConfig, CriticConfig, TeacherConfig
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
from rl_core.config.rollout import ResourcesConfig, RewardConfig, RolloutConfig
from rl_core.envs import DEFAULT_ENV, ENVS, find_env
from rl_core.envs.text_env import TextEnv
from rl_core.section import MAX_INT, Section, as_list, rule
from rl_core.system.devices import has_fast_bfloat16
from rl_core.system.named_code import names_code
from rl_core.system.words import as_path

MAY_DIFFER: Final[dict[str, bool | set[str]]] = {
    **dict.fromkeys(("run_id", "storage", "checkpoints", "budget", "retry", "watchdog"), True),
    "trainer": {"stop_grace_s", "logger", "wandb_project", "wandb_mode"},
}
"""Settings that may differ if a run continues: they say where it is kept, how long it may take and
how it is watched and shown, not what is learned."""


Files = Annotated[tuple[str, ...], BeforeValidator(as_list)]


def _of_its_env(value: Any, validate: ValidatorFunctionWrapHandler) -> TextEnv:
    """Returns the settings as the model of the env that they name, which checks them."""
    if isinstance(value, Mapping):
        value = find_env(value.get("name"), imports=False).model_validate(value)
    settings: TextEnv = validate(value)
    if settings.max_turns > 1 and type(settings).reply is TextEnv.reply:
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
    seed: int = Field(0, ge=0, le=MAX_INT)
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

    @rule
    def _tests_what_it_trains(self) -> Iterator[str]:
        if self.test_files and not self.train_files:
            yield (f"data.test_files={list(self.test_files)} needs data.train_files, too")


class RunConfig(Section):
    """One run, from puzzles to report."""

    preset: str = "quickstart"
    """One of the presets, or a YAML file of your own: settings to start from."""
    run_id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run's folder; an existing one is continued. By default a time and a word."""
    seed: int = Field(0, ge=0, le=MAX_INT)
    """Seed of order, sampling and fresh weights: the same seed repeats a run."""
    storage: StorageConfig = StorageConfig()
    env: EnvConfig = ENVS[DEFAULT_ENV]()
    """The family of problems, chosen by `env=countdown` or `env=gsm8k`."""
    reward: RewardConfig = RewardConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    base_model: BaseModelConfig = BaseModelConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    actor: ActorConfig = ActorConfig()
    critic: CriticConfig = CriticConfig()
    teacher: TeacherConfig = TeacherConfig()
    sft: SftConfig = SftConfig()
    rollout: RolloutConfig = RolloutConfig()
    resources: ResourcesConfig = ResourcesConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    retry: RetryConfig = RetryConfig()
    budget: BudgetConfig = BudgetConfig()
    watchdog: WatchdogConfig = WatchdogConfig()

    def learns_the_same(self, other: Self) -> bool:
        """Returns whether a run begun with these settings can continue with the others."""
        return self.model_dump(exclude=MAY_DIFFER) == other.model_dump(exclude=MAY_DIFFER)

    @property
    def compute_dtype(self) -> Literal["float32", "bfloat16"]:
        """`model.dtype`; for `auto`, the type for the hardware of this process."""
        if self.model.dtype != "auto":
            return self.model.dtype
        return "bfloat16" if self.resources.learner_gpus or has_fast_bfloat16() else "float32"

    @property
    def teacher_folder(self) -> Path | None:
        """Where the teacher is, if `teacher.path` names a folder or a run's checkpoint."""
        if self.teacher.path is None:
            return None
        run, _, what = self.teacher.path.partition("/")
        of_run = self.storage.root / "runs" / run / "checkpoints" / (what or "best")
        folders = (as_path(self.teacher.path), of_run)
        return next((folder.resolve() for folder in folders if folder.is_dir()), None)

    @property
    def own_algorithms(self) -> dict[str, str]:
        """Functions of the user's that the learner loads, by the setting that names them."""
        named = {
            "algorithm.estimator": self.algorithm.estimator,
            "actor.policy_loss": self.actor.policy_loss,
        }
        return {key: name for key, name in named.items() if names_code(name)}

    @property
    def loss_options(self) -> dict[str, Any]:
        """What the policy loss takes as keywords."""
        if "actor.policy_loss" in self.own_algorithms:
            return self.algorithm.options
        settings = {name: getattr(self.actor, name) for name in self.actor.formula.settings}
        return self.actor.clips | settings

    @property
    def loss_aggregation(self) -> Aggregation:
        """How token losses become one: as set, else the policy loss's own or the estimator's."""
        of_loss = self.actor.loss_aggregation or self.actor.formula.aggregation
        return of_loss or self.algorithm.formula.aggregation

    @property
    def has_one_update(self) -> bool:
        """Whether a step's log-probs can be those of its only update, which saves a pass.

        A KL penalty in the reward, and an estimator of the user's, need them before the update:
        then the engines' must be equal.
        """
        algorithm = self.algorithm
        in_reward = algorithm.kl_mode == "reward" and algorithm.kl_coef > 0
        needed_before = in_reward or "algorithm.estimator" in self.own_algorithms
        engines_agree = self.compute_dtype == "float32" and not self.rollout.staleness
        never_needed = self.updates_once or self.actor.formula.ratio_to_engine
        return never_needed and (engines_agree or not needed_before)

    @property
    def saves_whole_models(self) -> bool:
        """Whether each checkpoint holds the model's weights: merged ones, if adapters learn.

        Adapters of 4-bit weights cannot be merged later: only the learner has the rounded ones.
        """
        is_adapter = self.model.lora_rank > 0 and not self.model.load_in_4bit
        return not is_adapter or self.checkpoints.merged == "all"

    @property
    def has_one_critic_update(self) -> bool:
        """Whether a step's values can be those of its only update, which saves a pass."""
        return self.algorithm.formula.needs_critic and self.updates_once

    @property
    def updates_once(self) -> bool:
        """Whether the policy has not moved yet when it learns from a step's rollouts."""
        fills_batch = self.actor.mini_batch_size == self.data.train_batch_size
        return fills_batch and self.actor.ppo_epochs == 1

    @rule
    def _fills_its_batches(self) -> Iterator[str]:
        batch = self.data.train_batch_size
        mini = self.actor.mini_batch_size
        if mini > batch or batch % mini:
            yield (
                f"actor.mini_batch_size={mini} must divide data.train_batch_size={batch}: "
                f"a mini-batch left unfilled would scale gradients by {(batch % mini) / mini:.3g}"
            )
        if self.env.rows.source(self.env) is None and batch > self.data.train_size:
            yield (
                f"data.train_batch_size={batch} is above data.train_size={self.data.train_size}: "
                "no step could be filled"
            )

    @rule
    def _tunes_a_given_model(self) -> Iterator[str]:
        if self.sft.data is not None and self.model.path is None:
            yield (
                f"sft.data={self.sft.data} fine-tunes a given model, and the home-made one is "
                "taught already: set model.path, or leave sft.data out"
            )

    @rule
    def _fits_its_processes(self) -> Iterator[str]:
        ranks = self.resources.learner_ranks
        mini = self.actor.mini_batch_size
        if mini < ranks:
            yield (
                f"resources.learner_ranks={ranks} divide the prompts of a mini-batch, and "
                f"actor.mini_batch_size={mini} leaves some without any: use at least "
                f"{ranks}, or at most {mini} ranks"
            )
        if ranks > 1 and self.resources.learner_gpus not in (0, 1):
            yield (
                f"resources.learner_gpus={self.resources.learner_gpus:g} must be 1 (a card for "
                f"each rank) or 0 (the CPU) with resources.learner_ranks={ranks}"
            )
        parts = self.rollout.tensor_parallel_size
        if parts > 1 and self.resources.rollout_gpus not in (0, 1):
            yield (
                f"rollout.tensor_parallel_size={parts} splits an engine over {parts} GPUs: "
                f"resources.rollout_gpus={self.resources.rollout_gpus:g}, of each, must be 1 (or "
                "0, on a CPU)"
            )

    @rule
    def _knows_how_to_learn(self) -> Iterator[str]:
        estimator = self.algorithm.estimator
        formula = self.algorithm.formula
        is_alone = self.algorithm.group_size < 2
        if formula.needs_groups and is_alone:
            yield (
                f"algorithm.estimator={estimator} compares the responses to one prompt, and a "
                "group of one gives no advantage: algorithm.group_size=1 must be at least 2"
            )
        compares = formula.needs_groups or (names_code(estimator) and not is_alone)
        if not compares and self.algorithm.resample_rounds:
            yield (
                f"algorithm.resample_rounds={self.algorithm.resample_rounds} replaces groups "
                f"without spread, which algorithm.estimator={estimator} does not have: use 0"
            )
        if self.algorithm.options and not self.own_algorithms:
            yield (
                f"algorithm.options={self.algorithm.options} are for a function of yours, and none "
                "is named: add algorithm.estimator=module:function or "
                "actor.policy_loss=module:function"
            )
        steps = self.trainer.total_steps
        if formula.needs_critic and steps is not None and self.critic.warmup_steps >= steps:
            yield (
                f"critic.warmup_steps={self.critic.warmup_steps} leaves the policy none of "
                f"trainer.total_steps={steps} to learn in: use at most {steps - 1}"
            )
        if self.algorithm.kl_mode == "loss" and self.algorithm.kl_estimator != "k2":
            yield (
                f"algorithm.kl_estimator={self.algorithm.kl_estimator} as a loss does not have the "
                "gradient of the KL (k1's is 0 on average, k3's that of the reverse KL): use "
                "algorithm.kl_estimator=k2, or algorithm.kl_mode=reward"
            )
        for name, section in (("actor", self.actor), ("critic", self.critic)):
            if section.lr_schedule != "constant" and self.trainer.total_steps is None:
                yield (
                    f"{name}.lr_schedule={section.lr_schedule} ends with the run: "
                    "trainer.total_steps must say when that is"
                )

    @rule
    def _has_a_name_of_its_own(self) -> Iterator[str]:
        if self.run_id in ("base", "best", "champion", "latest"):
            yield (
                f"run_id={self.run_id} means something else in commands that read a run: choose "
                "another name"
            )

    @rule
    def _penalises_what_counts(self) -> Iterator[str]:
        estimator = self.algorithm.estimator
        formula = self.algorithm.formula
        in_reward = self.algorithm.has_reference and self.algorithm.kl_mode == "reward"
        if formula.ignores_rewards and in_reward:
            yield (
                f"algorithm.estimator={estimator} counts verdicts, which hold no penalty: "
                "algorithm.kl_mode=reward must be none (or loss, with kl_estimator=k2)"
            )
        if self.algorithm.overlong_tokens >= self.data.max_response_length:
            yield (
                f"algorithm.overlong_tokens={self.algorithm.overlong_tokens} are the last of a "
                "longest response: use fewer than data.max_response_length="
                f"{self.data.max_response_length}"
            )
        for name in ("overlong_tokens", "length_penalty"):
            value = getattr(self.algorithm, name)
            if value and formula.ignores_rewards:
                yield (
                    f"algorithm.{name}={value} is a penalty in the reward, which "
                    f"algorithm.estimator={estimator} ignores: use 0"
                )

    @rule
    def _has_a_teacher(self) -> Iterator[str]:
        path = self.teacher.path
        algorithm = self.algorithm
        if path is None and algorithm.estimator == "distill":
            yield (
                "algorithm.estimator=distill learns only from a teacher: set teacher.path to a "
                "model with the policy's tokens, such as teacher.path=RUN/best"
            )
        if path is not None and algorithm.resample_rounds:
            yield (
                f"algorithm.resample_rounds={algorithm.resample_rounds} replaces groups that teach "
                f"nothing, and with teacher.path={path} every group teaches: use 0"
            )
        if path is not None and self.teacher.signal == "full" and self.resources.learner_ranks > 1:
            yield (
                "teacher.signal=full needs the teacher's whole output embedding in each update, "
                f"which resources.learner_ranks={self.resources.learner_ranks} share: use tokens"
            )

    @rule
    def _knows_when_to_generate(self) -> Iterator[str]:
        staleness = self.rollout.staleness
        if self.rollout.sleep and (staleness or self.resources.rollout_gpus == 0):
            yield (
                "rollout.sleep=true frees a GPU while the learner works: it needs "
                "resources.rollout_gpus above 0 and rollout.staleness=0"
            )
        corrects = self.actor.importance_cap is not None or self.actor.formula.ratio_to_engine
        if staleness and not corrects:
            yield (
                f"rollout.staleness={staleness} learns from the responses of an older policy: "
                "actor.importance_cap=null must be a number, so that this is corrected"
            )
