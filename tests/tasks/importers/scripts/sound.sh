#!/usr/bin/env bash
set -euo pipefail
export N_GPUS=2
export BASE_MODEL=${1:-Qwen/Qwen2.5-0.5B}   # any hub name
TP=1

python3 -m verl.trainer.main_ppo \
    data.train_files=nowhere/countdown/train.parquet \
    data.val_files=nowhere/countdown/test.parquet \
    data.train_batch_size=256 \
    data.max_prompt_length=256 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path="$BASE_MODEL" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size=8 \
    actor_rollout_ref.actor.clip_ratio=0.25 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.005 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${TP} \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    algorithm.adv_estimator=grpo \
    trainer.logger=['console','wandb'] \
    trainer.n_gpus_per_node=$N_GPUS \
    trainer.nnodes=1 \
    trainer.save_freq=5000 \
    "trainer.project_name='count down'" \
    trainer.total_epochs=1 $@ 2>&1 | tee run.log
