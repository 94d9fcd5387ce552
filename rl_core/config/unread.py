"""Settings that others make useless, and why: shown before a run and in its report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_core.algos.advantages import ESTIMATORS
from rl_core.config.model import TRACES
from rl_core.config.run import RunConfig
from rl_core.envs.reasoning_gym import PACKAGE_SCORING
from rl_core.envs.tool_env import ToolEnv
from rl_core.system.words import in_one_line


@dataclass(frozen=True)
class Reader:
    """What reads some settings, and whether a run has it."""

    settings: str
    """Names of settings, with spaces between; `critic.` stands for all that begin so."""
    reads: Callable[[RunConfig], object]
    why_not: str
    """Follows `KEY=VALUE has no effect: `."""


def _are_generated(config: RunConfig) -> bool:
    return config.env.rows.source(config.env) is None and not config.data.train_files


READERS: Final = (
    Reader(
        "critic.",
        lambda config: config.algorithm.formula.needs_critic,
        "only algorithm.estimator=gae has a critic",
    ),
    Reader(
        "critic.value_clip",
        lambda config: not config.updates_once,
        "a step has one update, before which no value has moved",
    ),
    Reader(
        "algorithm.outcome_gate",
        lambda config: config.algorithm.formula.needs_groups,
        "the estimator does not compare the responses of a group",
    ),
    Reader(
        "algorithm.kl_coef",
        lambda config: config.algorithm.has_reference or config.algorithm.kl_coef == 0,
        "algorithm.kl_mode adds no KL with this estimator",
    ),
    Reader(
        "algorithm.kl_estimator algorithm.kl_controller algorithm.kl_target algorithm.kl_horizon",
        lambda config: config.algorithm.has_reference,
        "the run has no KL to a reference (algorithm.kl_mode and kl_coef)",
    ),
    Reader(
        "algorithm.kl_target algorithm.kl_horizon",
        lambda config: config.algorithm.kl_controller == "adaptive",
        "only algorithm.kl_controller=adaptive follows it",
    ),
    Reader(
        "actor.clip_eps_low actor.clip_eps_high actor.dual_clip",
        lambda config: config.actor.formula.ratio_to_engine or not config.updates_once,
        "a step has one update, in which every ratio is 1 (a smaller actor.mini_batch_size or "
        "more actor.ppo_epochs makes more)",
    ),
    Reader(
        "actor.dual_clip",
        lambda config: "dual_clip" in config.actor.formula.settings,
        "only actor.policy_loss=ppo has it",
    ),
    Reader(
        "actor.importance_low actor.importance_level actor.importance_outside",
        lambda config: config.actor.importance_cap is not None,
        "actor.importance_cap=null has no importance weights",
    ),
    Reader(
        "teacher.signal teacher.coef teacher.bound teacher.load_in_4bit",
        lambda config: config.teacher.path is not None,
        "teacher.path names no teacher",
    ),
    Reader(
        "teacher.bound",
        lambda config: config.teacher.signal == "tokens",
        "only teacher.signal=tokens has a bound",
    ),
    Reader(
        "base_model.",
        lambda config: config.model.path is None,
        "model.path names a model, and none is made at home",
    ),
    Reader(
        "sft.",
        lambda config: config.sft.data is not None,
        "sft.data=null: there is no fine-tuning",
    ),
    Reader(
        "sft.epochs sft.max_length",
        lambda config: config.sft.data != TRACES,
        "traces have neither passes nor a longest row (sft.steps, data.max_response_length)",
    ),
    Reader("sft.epochs", lambda config: config.sft.steps is None, "sft.steps says how long it is"),
    Reader(
        "model.lora_alpha",
        lambda config: config.model.lora_rank or (config.sft.data and config.sft.lora_rank),
        "model.lora_rank=0: there are no adapters",
    ),
    Reader(
        "rollout.kv_cache_mib",
        lambda config: config.rollout.engine == "vllm" and not config.resources.rollout_gpus,
        "only a vLLM engine on the CPU has it",
    ),
    Reader(
        "rollout.gpu_memory_utilization rollout.sleep",
        lambda config: config.rollout.engine == "vllm" and config.resources.rollout_gpus,
        "only a vLLM engine on a GPU has it",
    ),
    Reader(
        "resources.offload",
        lambda config: config.resources.learner_gpus,
        "resources.learner_gpus=0 computes in the machine's memory already",
    ),
    Reader(
        "resources.gpu_memory_gib",
        lambda config: config.resources.card is None,
        "resources.card brings its own memory",
    ),
    Reader(
        "data.seed env.min_ env.max_n env.max_op env.max_target",
        _are_generated,
        "the problems are read from files, not generated",
    ),
    Reader(
        "data.train_size",
        lambda config: _are_generated(config) or config.data.train_files,
        "all rows of the published data are used (data.train_files takes a part)",
    ),
    Reader(
        "data.test_size",
        lambda config: (
            _are_generated(config) or (config.data.train_files and not config.data.test_files)
        ),
        "all rows of the test split are used (evaluation.max_problems takes a part)",
    ),
    Reader(
        "reward.",
        lambda config: config.env.reward or isinstance(config.env, ToolEnv),
        "no function of yours is called (env.reward)",
    ),
    Reader(
        "env.format_score env.answer_from",
        lambda config: not config.env.reward,
        "env.reward decides how a response is read and scored",
    ),
    Reader(
        "env.full_score",
        lambda config: PACKAGE_SCORING not in config.env.reward[:1],
        "the package's scoring says what is correct, and scores it 1",
    ),
    Reader(
        "trainer.wandb_mode",
        lambda config: "wandb" in config.trainer.logger,
        "trainer.logger does not name wandb",
    ),
    Reader(
        "budget.currency",
        lambda config: config.budget.price_per_hour is not None,
        "budget.price_per_hour=null shows no prices",
    ),
    Reader(
        "budget.stop_on_hacked_reward",
        lambda config: config.data.curriculum is None,
        "data.curriculum changes the problems, so a reward that rises proves nothing",
    ),
    Reader(
        "retry.delay_s",
        lambda config: config.retry.max_retries,
        "retry.max_retries=0 never waits for one",
    ),
)
"""Settings that no line names are read by every run, or refused where they are not."""


def unread_settings(config: RunConfig, values: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each of these settings, by dotted key, that has no effect."""
    uses = {name for row in ESTIMATORS.values() for name in row.settings}
    why_not = f"algorithm.estimator={config.algorithm.estimator} does not have it"
    lacking = uses.difference(config.algorithm.formula.settings)
    reasons = dict.fromkeys((f"algorithm.{name}" for name in lacking), why_not)
    for key in values:
        for reader in READERS:
            if key.startswith(tuple(reader.settings.split())) and not reader.reads(config):
                reasons.setdefault(key, reader.why_not)
    return [
        in_one_line(f"{key}={value} has no effect: {reasons[key]}")
        for key, value in values.items()
        if key in reasons and key != "sft.data"
    ]
