"""Launch scripts and a console log in verl's and TinyZero's form, written for the tests."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = [
    *["if ", "then ", "else ", "fi\n", "case ", "esac ", " in ", "for ", "do ", "done ", "f()"],
    *["$((", "))", "$(", ")", "${", "}", "{", "[[ ", " ]]", "[ ", " ]", "|", "||", "&&", "&", ";;"],
    *["\n", "\\\n", "\\ \n", " ", "\t", "A", "B", "=", "+=", ":-", ":=", ":+", "##", "%", "/", "@"],
    *["*", "#", '"', "'", "`", "<<E\n", "E\n", "<<<", "<(", "0", "99999999999999999999", "+", "-"],
    *["!", "-n ", "-eq ", "==", "=~", "$", "$A", "${A}", "A=$A$A$A\n", "L=(", '"${L[@]}"', "~b/"],
    *["é", "\U0002ed24", "\U0001f600", "\x00", "\ud800", "[", "]", "{a: b}", "!!bool x", "&a *a"],
    *["0x_", "2024-13-45", "python3 -m verl.trainer.main_ppo ", " data.train_batch_size="],
    *[" actor_rollout_ref.model.path=", " algorithm.adv_estimator=grpo ", " data.train_files="],
]
shell_texts = st.lists(st.one_of(st.sampled_from(_PIECES), st.characters()), max_size=40).map(
    "".join
)
"""Texts of what a shell has a meaning for, and of any other characters."""

SOUND = r"""#!/usr/bin/env bash
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
"""

PLANTED = r"""export DATA_DIR=data/countdown
python3 -m verl.trainer.main_ppo \
data.train_files=$DATA_DIR/train.parquet \
data.train_batch_size=32 \
data.val_batch_size=1312 \
data.max_promt_length=256 \
actor_rollout_ref.model.path=Qwen/Qwen2.5-3B \
actor_rollout_ref.actor.ppo_mini_batch_size=128 \
actor_rollout_ref.ref.log_prob_micro_batch_size=4 \
actor_rollout_ref.rollout.tensor_model_parallel_size=2 \BLANK
actor_rollout_ref.ref.log_prob_micro_batch_size=2 \
algorithm.adv_estimator=grpo \
trainer.experiment_name=$NAME \
trainer.n_gpus_per_node=1 \
trainer.save_freq=10 \
trainer.total_epochs=15 2>&1 | tee verl_demo.log
""".replace("BLANK", " ")
"""Line 10 ends in a backslash and a blank; what else is wrong, the tests say."""

PRINTED = """(main_task pid=3107) {'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 32,
(main_task pid=3107)                                  'optim': {'lr': 1e-06}},
\x1b[36m(main_task pid=3107)\x1b[0m                    'model': {'path': '/root/qwen2505B'},
(main_task pid=3107)                        'rollout': {'n': 1, 'name': 'vllm'}},
(main_task pid=3107)  'algorithm': {'adv_estimator': 'gae', 'kl_ctrl': {'type': 'fixed'}},
(main_task pid=3107)  'data': {'max_prompt_length': 256, 'max_response_length': 1024,
(main_task pid=3107)           'train_batch_size': 32, 'val_files': None},
(main_task pid=3107)  'trainer': {'logger': ['wandb'], 'resume': {}}}
(main_task pid=3107) step:1 - critic/score/mean:0.036 - timing_s/step:8.990
"""
"""A console log of verl: the settings as it prints them, and a step."""

GSM8K = r"""#!/bin/bash
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
"""
"""A quickstart's GRPO on GSM8K: group size and coefficient under names that verl does not have."""

FROM_OUTSIDE = r"""python3 -m verl.trainer.main_ppo \
data.train_files=$DATA_DIR/train.parquet \
data.train_batch_size=256 \
actor_rollout_ref.model.path=$BASE_MODEL \
critic.model.path=$BASE_MODEL \
critic.model.enable_gradient_checkpointing=True \
trainer.n_gpus_per_node=$N_GPUS \
trainer.experiment_name=$EXPERIMENT_NAME
"""
"""TinyZero's way: the person who starts it exports what it is about."""

ARRAYS = r"""set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-3B}
tokens=${TOKENS:-$((1024 * 3))}
gpus=${GPUS:-}
EXTRA=()
case "${DEVICE}" in
    gpu | cuda) gpus=${gpus:-1} ;;
    *)
        gpus=16
        EXTRA+=(actor_rollout_ref.actor.use_torch_compile=False)
        ;;
esac
if [ "${DEVICE}" = npu ] && [ -n "${gpus}" ]; then
    MODEL_PATH=nothing
elif [[ ${MODEL_PATH##*/} == Qwen* ]]; then
    EXTRA+=("actor_rollout_ref.rollout.n=$((gpus + 4))")
fi
DATA=(
    data.train_files="['$HOME/data/countdown/train.parquet']"
    data.train_batch_size=256   # prompts
)
ACTOR=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${tokens}
    trainer.n_gpus_per_node=${gpus}
    critic.ppo_max_token_len_per_gpu='${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}'
)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo algorithm.use_kl_in_reward=False \
    "${DATA[@]}" "${ACTOR[@]}" "${EXTRA[@]}" "$@"
"""
"""The form of verl 0.9's examples: arrays, a case by device, defaults of variables."""
