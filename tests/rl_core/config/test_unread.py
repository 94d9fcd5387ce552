"""Settings without effect are named, and those that count are not."""

import pytest

from flows.cli.explain import all_settings
from flows.settings.compose import compose, read_preset
from flows.settings.keys import PRESETS
from rl_core.config.unread import READERS, unread_settings
from rl_core.runs.settings_file import leaves

GRPO = "algorithm.estimator=grpo algorithm.group_size=4 "
CASES = [
    # (the setting, what goes with it, why it has no effect, what makes it count)
    ("critic.lr=0.9", GRPO, "only algorithm.estimator=gae has a critic", ""),
    ("critic.value_clip=1", "actor.mini_batch_size=256", "one update", "actor.ppo_epochs=2"),
    ("algorithm.gamma=0.9", GRPO, "algorithm.estimator=grpo does not have it", ""),
    ("algorithm.gae_lambda=0.9", "algorithm.estimator=reinforce_plus_plus", "does not have", ""),
    ("algorithm.outcome_gate=false", "", "does not compare the responses", GRPO),
    ("algorithm.kl_coef=0.1", "algorithm.kl_mode=none", "kl_mode adds no KL", ""),
    ("algorithm.kl_estimator=k3", "algorithm.kl_coef=0", "has no KL to a reference", ""),
    ("algorithm.kl_target=1", "", "kl_controller=adaptive", "algorithm.kl_controller=adaptive"),
    ("actor.clip_eps_low=0.1", "actor.mini_batch_size=256", "one update", "actor.ppo_epochs=2"),
    ("actor.dual_clip=2", "actor.policy_loss=cispo", "only actor.policy_loss=ppo", ""),
    ("actor.importance_low=0.5", "actor.importance_cap=null", "no importance weights", ""),
    ("teacher.coef=2", "", "names no teacher", "teacher.path=RUN/best"),
    ("teacher.load_in_4bit=true", "", "names no teacher", "teacher.path=RUN/best"),
    ("teacher.bound=2", "teacher.path=a teacher.signal=full", "signal=tokens", "teacher.path=a"),
    ("base_model.steps=3", "model.path=a", "none is made at home", ""),
    ("sft.lr=1", "model.path=a", "no fine-tuning", "model.path=a sft.data=traces"),
    (
        "sft.epochs=3",
        "model.path=a sft.data=traces",
        "neither passes",
        "model.path=a sft.data=b.jsonl",
    ),
    (
        "sft.epochs=3",
        "model.path=a sft.data=b.jsonl sft.steps=9",
        "how long",
        "model.path=a sft.data=c",
    ),
    ("model.lora_alpha=3", "", "there are no adapters", "model.lora_rank=4"),
    ("rollout.kv_cache_mib=99", "rollout.engine=hf", "only a vLLM engine on the CPU", ""),
    ("rollout.gpu_memory_utilization=0.3", "", "on a GPU", "resources.rollout_gpus=1"),
    ("resources.offload=true", "", "in the machine's memory already", "resources.learner_gpus=1"),
    ("resources.gpu_memory_gib=30", "resources.card=H100", "brings its own memory", ""),
    ("data.seed=3", "data.train_files=[a.jsonl]", "read from files", ""),
    ("env.max_operands=4", "data.train_files=[a.jsonl]", "read from files", ""),
    ("data.train_size=9000", "env=gsm8k", "all rows of the published", "env=gsm8k env.source=toy"),
    ("data.test_size=90", "data.train_files=[a] data.test_files=[b]", "test split are used", ""),
    ("reward.workers=3", "", "no function of yours", "env.reward=a:b"),
    ("env.format_score=0.2", "env.reward=a:b", "env.reward decides", ""),
    ("env.full_score=2", "env=reasoning_gym", "scores it 1", "env=reasoning_gym env.reward=[]"),
    ("trainer.wandb_mode=online", "", "does not name wandb", "trainer.logger=[wandb]"),
    ("budget.currency=USD", "", "shows no prices", "budget.price_per_hour=2"),
    ("budget.stop_on_hacked_reward=true", "data.curriculum=pass_rate", "proves nothing", ""),
    ("retry.delay_s=3", "retry.max_retries=0", "never waits", ""),
]


@pytest.mark.parametrize(("setting", "others", "why", "counts_with"), CASES)
def test_a_setting_without_effect_is_named_and_one_with_effect_is_not(
    setting, others, why, counts_with
):
    key, _, value = setting.partition("=")
    (sentence,) = unread_settings(compose([setting, *others.split()]), {key: value})
    assert sentence.startswith(f"{setting} has no effect: ")
    assert why in sentence
    assert not unread_settings(compose([setting, *counts_with.split()]), {key: value})


def test_each_reader_names_settings_that_exist_and_has_a_case():
    keys = [setting.key for setting in all_settings()]
    for reader in READERS:
        names = reader.settings.split()
        assert all(any(key.startswith(name) for key in keys) for name in names), names
        assert any(setting.startswith(tuple(names)) for setting, *_ in CASES), names


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_nothing_that_counts_for_nothing(preset):
    _, settings = read_preset(preset)
    assert unread_settings(compose([f"preset={preset}"]), dict(leaves(settings))) == []
