export DATA_DIR=data/countdown
python3 -m verl.trainer.main_ppo \
data.train_files=$DATA_DIR/train.parquet \
data.train_batch_size=32 \
data.val_batch_size=1312 \
data.max_promt_length=256 \
actor_rollout_ref.model.path=Qwen/Qwen2.5-3B \
actor_rollout_ref.actor.ppo_mini_batch_size=128 \
actor_rollout_ref.ref.log_prob_micro_batch_size=4 \
actor_rollout_ref.rollout.tensor_model_parallel_size=2 \ 
actor_rollout_ref.ref.log_prob_micro_batch_size=2 \
algorithm.adv_estimator=grpo \
trainer.experiment_name=$NAME \
trainer.n_gpus_per_node=1 \
trainer.save_freq=10 \
trainer.total_epochs=15 2>&1 | tee verl_demo.log
