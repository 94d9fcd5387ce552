set -xeuo pipefail
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
EXTRA+=("actor_rollout_ref.rollout.n=$((gpus + 4))")
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
