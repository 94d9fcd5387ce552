python3 -m verl.trainer.main_ppo \
data.train_files=$DATA_DIR/train.parquet \
data.train_batch_size=256 \
actor_rollout_ref.model.path=$BASE_MODEL \
critic.model.path=$BASE_MODEL \
critic.model.enable_gradient_checkpointing=True \
trainer.n_gpus_per_node=$N_GPUS \
trainer.experiment_name=$EXPERIMENT_NAME
