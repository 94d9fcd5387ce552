"""verl's settings and what they are called here (verl's and TinyZero's launch scripts use them)."""

from __future__ import annotations

from typing import Any, Final

SAME: Final[dict[str, str]] = {
    "data.train_files": "data.train_files",
    "data.val_files": "data.test_files",
    "data.train_max_samples": "data.train_size",
    "data.train_batch_size": "data.train_batch_size",
    "data.max_prompt_length": "data.max_prompt_length",
    "data.max_response_length": "data.max_response_length",
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.lora_rank": "model.lora_rank",
    "actor_rollout_ref.model.lora_alpha": "model.lora_alpha",
    "actor_rollout_ref.model.lora.rank": "model.lora_rank",
    "actor_rollout_ref.model.lora.alpha": "model.lora_alpha",
    "actor_rollout_ref.actor.optim.lr": "actor.lr",
    "actor_rollout_ref.actor.optim.weight_decay": "actor.weight_decay",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "actor.mini_batch_size",
    "actor_rollout_ref.actor.ppo_epochs": "actor.ppo_epochs",
    "actor_rollout_ref.actor.clip_ratio_low": "actor.clip_eps_low",
    "actor_rollout_ref.actor.clip_ratio_high": "actor.clip_eps_high",
    "actor_rollout_ref.actor.entropy_coeff": "actor.entropy_coef",
    "actor_rollout_ref.actor.grad_clip": "actor.grad_clip",
    "actor_rollout_ref.actor.optim.clip_grad": "actor.grad_clip",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "actor.micro_batch_tokens",
    "actor_rollout_ref.rollout.temperature": "rollout.temperature",
    "actor_rollout_ref.rollout.top_p": "rollout.top_p",
    "actor_rollout_ref.rollout.top_k": "rollout.top_k",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_num_seqs": "rollout.max_num_seqs",
    "critic.optim.lr": "critic.lr",
    "critic.optim.weight_decay": "critic.weight_decay",
    "critic.optim.clip_grad": "critic.grad_clip",
    "critic.grad_clip": "critic.grad_clip",
    "critic.cliprange_value": "critic.value_clip",
    "algorithm.adv_estimator": "algorithm.estimator",
    "algorithm.gamma": "algorithm.gamma",
    "algorithm.lam": "algorithm.gae_lambda",
    "algorithm.kl_ctrl.kl_coef": "algorithm.kl_coef",
    "algorithm.kl_ctrl.type": "algorithm.kl_controller",
    "algorithm.kl_ctrl.target_kl": "algorithm.kl_target",
    "algorithm.kl_ctrl.horizon": "algorithm.kl_horizon",
    "critic.kl_ctrl.kl_coef": "algorithm.kl_coef",
    "critic.kl_ctrl.type": "algorithm.kl_controller",
    "algorithm.rollout_correction.rollout_is_threshold": "actor.importance_cap",
    "algorithm.rollout_is_threshold": "actor.importance_cap",
    "trainer.critic_warmup": "critic.warmup_steps",
    "trainer.save_freq": "trainer.save_freq",
    "trainer.test_freq": "trainer.test_freq",
    "trainer.total_epochs": "trainer.total_epochs",
    "trainer.total_training_steps": "trainer.total_steps",
    "trainer.max_actor_ckpt_to_keep": "checkpoints.keep_last",
    "trainer.logger": "trainer.logger",
    "trainer.project_name": "trainer.wandb_project",
}
"""verl's key -> ours, where a value means the same; null and -1 leave ours at its default."""

TOGETHER: Final[dict[str, str]] = {
    "data.val_max_samples": "trainer.test_problems",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "actor_rollout_ref.actor.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "critic.model.enable_gradient_checkpointing": "model.gradient_checkpointing",
    "actor_rollout_ref.actor.clip_ratio": "actor.clip_eps_low",
    "actor_rollout_ref.actor.loss_agg_mode": "actor.loss_aggregation",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "actor.policy_loss",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "actor.micro_batch_tokens",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "actor.micro_batch_tokens",
    "actor_rollout_ref.actor.use_kl_loss": "algorithm.kl_mode",
    "actor_rollout_ref.actor.kl_loss_coef": "algorithm.kl_coef",
    "actor_rollout_ref.actor.kl_loss_type": "algorithm.kl_estimator",
    "actor_rollout_ref.actor.fsdp_config.param_offload": "resources.offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "resources.offload",
    "actor_rollout_ref.ref.fsdp_config.param_offload": "resources.offload",
    "critic.model.fsdp_config.optimizer_offload": "resources.offload",
    "critic.fsdp.optimizer_offload": "resources.offload",
    "actor_rollout_ref.rollout.name": "rollout.engine",
    "actor_rollout_ref.rollout.n": "algorithm.group_size",
    "actor_rollout_ref.rollout.free_cache_engine": "rollout.sleep",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "rollout.tensor_parallel_size",
    "algorithm.group_size": "algorithm.group_size",
    "algorithm.kl_penalty": "algorithm.kl_estimator",
    "algorithm.use_kl_in_reward": "algorithm.kl_mode",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.estimator",
    "algorithm.filter_groups.enable": "algorithm.resample_rounds",
    "algorithm.filter_groups.max_num_gen_batches": "algorithm.resample_rounds",
    "custom_reward_function.path": "env.reward",
    "custom_reward_function.name": "env.reward",
    "reward.custom_reward_function.path": "env.reward",
    "reward.custom_reward_function.name": "env.reward",
    "trainer.n_gpus_per_node": "resources.learner_ranks",
    "trainer.nnodes": "resources.learner_ranks",
    **{
        f"{optimizer}.{verl}": f"{section}.{ours}"
        for optimizer, section in (
            ("actor_rollout_ref.actor.optim", "actor"),
            ("critic.optim", "critic"),
        )
        for verl, ours in (
            ("warmup_style", "lr_schedule"),
            ("lr_scheduler_type", "lr_schedule"),
            ("lr_decay_style", "lr_schedule"),
            ("lr_warmup_steps", "warmup_steps"),
            ("lr_warmup_steps_ratio", "warmup_steps"),
        )
    },
    **{
        f"{optimizer}.optimizer": "actor.optimizer"
        for optimizer in ("actor_rollout_ref.actor.optim", "critic.optim")
    },
}
"""verl's key -> the nearest of ours, where others decide as well (`verl_rules.py`)."""

DEFAULTS: Final[dict[str, Any]] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "actor.mini_batch_size": 256,
    "trainer.total_epochs": 30,
}
"""Ours -> what every version of verl and TinyZero takes where a script is silent."""

ESTIMATORS: Final = {
    "gae": "gae",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}
POLICY_LOSSES: Final = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo"}
AGGREGATIONS: Final = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
KL_ESTIMATORS: Final = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
"""verl's names -> ours."""
