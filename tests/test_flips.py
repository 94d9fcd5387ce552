"""Every setting counts: with another value a plan, numbers or files change, or it is refused.

A line of FLIPS is `KEY=VALUE`, and the settings beside which it should count. `tests/support/flips`
has the functions that look. A setting that no line has is in EXCEPTIONS, with the reason.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from flows.cli.explain import Setting, all_settings
from flows.settings.compose import compose
from rl_core.config.unread import unread_settings
from tests.conftest import build_tiny_model
from tests.support import flips
from tests.support.flips import Flip

NOBODY: Final = "http://127.0.0.1:9"
"""Nothing answers there."""
GRPO: Final = "algorithm.estimator=grpo algorithm.kl_mode=none"
ADAPTIVE: Final = "algorithm.kl_controller=adaptive algorithm.kl_horizon=10"
ROUNDED: Final = "model.dtype=bfloat16"
"""Engine and learner differ by rounding."""
_REWARDS: Final = "tests.support.user_rewards:"
REWARD: Final = f"env.reward=[{_REWARDS}{{}}]"
TEACHER: Final = f"{GRPO} teacher.path=FILES/other_model"
CUSTOM: Final = "env=custom data.train_files=[FILES/rows.jsonl]"
ON_A_CARD: Final = (
    "resources.rollout_gpus=0.5 resources.learner_gpus=0.5 resources.card=H100 "
    "rollout.num_engines=1"
)
OF_ENV: Final = {
    "countdown": "",
    "gsm8k": "env=gsm8k env.source=toy",
    "custom": CUSTOM,
    "reasoning_gym": "env=reasoning_gym env.reward=[]",
    "number_questions": "env=number_questions",
}
FLIPS: Final = {
    "numbers": f"""
        seed=1
        data.train_batch_size=2
        data.max_response_length=4
        model.path=FILES/other_model
        model.dtype=bfloat16
        model.lora_rank=4
        model.lora_alpha=64 model.lora_rank=4
        model.load_in_4bit=true model.lora_rank=4
        algorithm.estimator=rloo {GRPO}
        algorithm.options={{scale:3}} algorithm.estimator=tests.support.own_algorithms:scaled
        algorithm.gamma=0.5
        algorithm.gae_lambda=0.5
        algorithm.group_size=4
        algorithm.kl_mode=none
        algorithm.kl_estimator=k2
        algorithm.kl_coef=0.5
        algorithm.kl_controller=adaptive algorithm.kl_horizon=10
        algorithm.kl_target=0.1 {ADAPTIVE} trainer.total_steps=3
        algorithm.kl_horizon=20 {ADAPTIVE}
        algorithm.overlong_tokens=3
        algorithm.length_penalty=0.5 env.reward=tests.support.user_rewards:always_right
        algorithm.mask_truncated=true
        algorithm.outcome_gate=false {GRPO}
        actor.lr=1e-3
        actor.lr_schedule=cosine
        actor.warmup_steps=2
        actor.weight_decay=5
        actor.optimizer=adamw_8bit
        actor.mini_batch_size=4
        actor.ppo_epochs=2
        actor.policy_loss=cispo {GRPO}
        actor.clip_eps_low=0.001
        actor.clip_eps_high=0.001
        actor.dual_clip=1.01 actor.clip_eps_high=9 actor.ppo_epochs=3
        actor.entropy_coef=0.5
        actor.grad_clip=0.001
        actor.importance_cap=1.001 {ROUNDED}
        actor.importance_low=0.999 {ROUNDED}
        actor.importance_level=sequence {ROUNDED} actor.importance_cap=1.001
        actor.importance_outside=drop {ROUNDED} actor.importance_cap=1.001
        actor.offpolicy_mask=0.001 {ROUNDED}
        actor.loss_aggregation=seq-mean-token-sum
        critic.lr=1e-4
        critic.lr_schedule=linear
        critic.warmup_steps=1
        critic.weight_decay=5
        critic.value_clip=0.001 actor.ppo_epochs=2
        critic.grad_clip=0.001
        teacher.path=FILES/other_model {GRPO}
        teacher.signal=full {TEACHER}
        teacher.coef=3 {TEACHER}
        teacher.bound=0.1 {TEACHER}
        teacher.load_in_4bit=true {TEACHER}
        rollout.temperature=0.5
    """,
    "run": f"""
        algorithm.resample_rounds=2 {GRPO} data.max_response_length=1
        data.curriculum=pass_rate
        trainer.total_epochs=1
        trainer.total_steps=2
        trainer.save_freq=1
        trainer.test_freq=1
        trainer.test_problems=1
        trainer.logger=[tensorboard]
        checkpoints.quota_bytes=1 trainer.save_freq=1
        checkpoints.keep_last=0 trainer.save_freq=1
        checkpoints.merged=none model.lora_rank=4
        storage.rollout_quota_bytes=1
        evaluation.decoding=sampled
        evaluation.temperature=0.5 evaluation.decoding=sampled
        evaluation.top_p=0.5 evaluation.decoding=sampled
        evaluation.top_k=3 evaluation.decoding=sampled
        evaluation.samples_per_problem=2 evaluation.decoding=sampled
        evaluation.seed=1 evaluation.decoding=sampled
        budget.max_hours=1e-9
        budget.max_cost=1e-9 budget.price_per_hour=1
    """,
    "plan": f"""
        actor.micro_batch_tokens=64
        model.gradient_checkpointing=true
        rollout.engine=hf
        rollout.num_engines=3
        rollout.tensor_parallel_size=2
        rollout.kv_cache_mib=999
        rollout.gpu_memory_utilization=0.5 {ON_A_CARD}
        rollout.sleep=true {ON_A_CARD}
        rollout.staleness=1
        rollout.max_num_seqs=8 rollout.engine=hf
        resources.learner_ranks=2
        resources.learner_threads=1
        resources.rollout_threads=2
        resources.learner_gpus=1
        resources.rollout_gpus=1
        resources.offload=true resources.learner_gpus=1 resources.rollout_gpus=1
        resources.gpu_memory_gib=80 resources.learner_gpus=1
        resources.card=H100 resources.learner_gpus=1 resources.rollout_gpus=1
        checkpoints.in_background=false
        budget.price_per_hour=2
        budget.currency=USD budget.price_per_hour=2
    """,
    "refusal": f"""
        env.source=nobody/nothing {OF_ENV["gsm8k"]} env.prompt_template=think
        storage.min_free_gib=1e9
        storage.url=s3://nowhere/at-all
        data.max_prompt_length=1020
        rollout.top_p=0.9
        rollout.top_k=9
        resources.ray_address=127.0.0.1:9
        trainer.wandb_mode=online trainer.logger=[wandb]
    """,
    "where": """
        preset=overnight-cpu
        run_id=other
        storage.root=elsewhere
    """,
    "supervision": """
        retry.max_retries=1
        retry.delay_s=1
        watchdog.stall_s=60
        trainer.stop_grace_s=60
    """,
    "data": f"""
        data.name=other
        data.train_files=[FILES/others.jsonl] {CUSTOM}
        data.test_files=[FILES/others.jsonl] {CUSTOM}
        data.train_size=9
        data.test_size=5
        data.seed=1
        env.min_operands=4 env.max_operands=4
        env.max_operands=5 data.train_size=40
        env.min_number=5
        env.max_number=9
        env.min_target=50
        env.max_target=500
        env.task=[gcd] env=reasoning_gym
        env.difficulty=3 env=reasoning_gym
        env.config={{leg_counting:{{max_animals:3}}}} env=reasoning_gym
        env.max_numbers=9 env=number_questions
        env.prompt_template=chat
        env.prompt_template=think {OF_ENV["gsm8k"]}
        env.prompt_template=base {OF_ENV["custom"]}
        env.prompt_template=base {OF_ENV["reasoning_gym"]}
    """,
    "scores": f"""
        env.answer_from=last_line
        env.answer_from=lenient {OF_ENV["gsm8k"]}
        env.answer_from=last_line {OF_ENV["custom"]}
        env.answer_from=last_line {OF_ENV["reasoning_gym"]}
        env.answer_from=lenient {OF_ENV["number_questions"]}
        reward.timeout_s=0.1 {REWARD.format("awaited")}
        reward.concurrency=1 {REWARD.format("calls_together")}
        reward.env=[FLIPPED_TOKEN] {REWARD.format("has_login")}
        reward.memory_mib=512 {REWARD.format("takes_a_gib")}
    """,
    "workers": f"reward.workers=3 {REWARD.format('process_number')}",
    "warm_start": """
        base_model.vocab_size=500
        base_model.hidden_size=64 base_model.num_heads=1
        base_model.intermediate_size=64
        base_model.num_layers=2
        base_model.num_heads=2
        base_model.steps=3
        base_model.batch_size=8
        base_model.lr=0.01
        base_model.warmup_steps=0
        base_model.give_up_prob=0.1
        base_model.max_response_tokens=20
        base_model.seed=1
    """,
    "fine_tuned": """
        sft.data=traces sft.steps=3
        sft.steps=2
        sft.give_up_prob=1 sft.data=traces sft.steps=3
        sft.epochs=2
        sft.batch_size=4
        sft.lr=1e-3
        sft.warmup_steps=3
        sft.lora_rank=4
        sft.max_length=16
        sft.held_out=1
        sft.save_freq=1
        sft.seed=1
    """,
    "evaluation": "evaluation.max_problems=2",
}
EXCEPTIONS: Final = {
    "budget.stop_on_hacked_reward": "it takes a hacked reward and three tests: tasks/test_train.py",
    "base_model.num_threads": "speed only: the model is the same with any number",
    "env.name": "env=NAME chooses it, and with it all of env.*",
    "trainer.wandb_project": "only a server sees it: rl_core/tracking/test_wandb_tracker.py",
}
"""Settings that no flip can show, and why."""
SLOW: Final = (
    *("numbers", "refusal", "plan", "data"),
    *("run", "scores", "workers", "warm_start", "fine_tuned", "evaluation"),
)


def _all_flips() -> list[Flip]:
    lines = [(sees, line) for sees, text in FLIPS.items() for line in text.splitlines() if line]
    for others in OF_ENV.values():
        letters = REWARD.format("share_of_letters")
        two = f"env.reward=[{_REWARDS}share_of_letters,{_REWARDS}same_text]"
        of_env = {
            "scores": ("env.format_score=0.3", "env.full_score=2", letters),
            "data": ("env.chat_args={mood:good} env.prompt_template=chat",),
            "refusal": ("env.max_turns=2",),
        }
        lines += [(sees, f"{text} {others}") for sees in of_env for text in of_env[sees]]
        lines.append(("scores", f"env.reward_weights=[0.5,1] {others} {two}"))
    return [Flip.parse(sees, line) for sees, line in lines if line.strip()]


ALL: Final = _all_flips()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, files of problems, and rows for SFT."""
    folder = tmp_path_factory.mktemp("files")
    build_tiny_model(folder / "model")
    build_tiny_model(folder / "other_model", seed=1)
    for name, first in (("rows", 0), ("others", 50)):
        rows = [{"question": f"What is {i}?", "answer": f"{i}"} for i in range(first, first + 16)]
        flips.write_lines(folder / f"{name}.jsonl", rows)
    pairs = [
        {"prompt": f"What is {a} + {b}? ", "response": f"{a + b}"}
        for a in range(6)
        for b in range(6)
    ]
    flips.write_lines(folder / "sft.jsonl", pairs)
    return folder


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLIPPED_TOKEN", "a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    monkeypatch.setenv("WANDB_BASE_URL", NOBODY)


@pytest.fixture(scope="module")
def seen() -> dict[Any, Any]:
    return {}


def _cases(flips_or_bases: Iterable[Any], sees: Callable[[Any], str]) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(x, marks=slow if sees(x) in SLOW else ()) for x in flips_or_bases]


@pytest.mark.parametrize("flip", _cases(ALL, lambda flip: flip.sees), ids=str)
def test_a_flipped_setting_shows(flip, files, seen, tmp_path, monkeypatch):
    before, after = flip.sides(files)
    if before not in seen:
        seen[before] = flips.look(flip.sees, before, files, tmp_path / "before")
    assert flips.look(flip.sees, after, files, tmp_path / "after") != seen[before]
    if flip.sees != "refusal":
        assert unread_settings(compose(after), {flip.key: flip.value}) == []


@pytest.mark.parametrize("sees", _cases(FLIPS, str))
def test_the_same_settings_look_the_same(sees, files, tmp_path):
    flip = next(flip for flip in ALL if flip.sees == sees)
    settings, _ = flip.sides(files)
    first, second = (flips.look(sees, settings, files, tmp_path / name) for name in "ab")
    assert first == second


def test_no_setting_is_left_out():
    flipped = {(flip.key, flip.env) for flip in ALL}
    keys = {flip.key for flip in ALL}
    missing = [
        f"{setting.key} (env={setting.env})"
        for setting in all_settings()
        if (setting.key not in keys if setting.env is None else _is_missing(setting, flipped))
        and setting.key not in EXCEPTIONS
    ]
    assert missing == []
    assert EXCEPTIONS.keys() <= {setting.key for setting in all_settings()} - keys


def _is_missing(setting: Setting, flipped: set[tuple[str, str]]) -> bool:
    if ":" in str(setting.env):  # an env of another test in this process
        return False
    has_choice = setting.choices != [setting.default]
    return has_choice and (setting.key, str(setting.env)) not in flipped
