#!/bin/bash
MODEL_PATH=~/models/Qwen2.5-7B-Instruct
DATA_DIR=${DATA_DIR:-~/no-such-place/gsm8k}
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.group_size=4 \
    algorithm.kl_penalty=0.001 \
    data.train_files="['${DATA_DIR}/train.parquet']" \
    data.val_files="['${DATA_DIR}/test.parquet']" \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=512 \
    actor_rollout_ref.model.path=${MODEL_PATH} \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    trainer.n_gpus_per_node=1 \
    trainer.total_epochs=3 \
    trainer.save_freq=1 \
    trainer.test_freq=-1 \
    trainer.experiment_name=grpo_gsm8k_qwen7b
