"""What verl's settings without an equivalent mean here: shell patterns of names, by the reason.

Patterns name whole sections only where none of their settings has a meaning here; elsewhere names
are spelled out, so that a misspelt one is still found.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

_OFF: Final = frozenset(
    {
        "",
        "false",
        "null",
        "none",
        "0",
        "0.0",
        "-1",
        "[]",
        "{}",
        "{ }",
        "disabled",
        "naive",
        "default",
    }
)
"""Values, in lower case, that ask for nothing."""

LACKING: Final[Mapping[str, str]] = {
    "a rule scores; a function in env.reward=package.module:function may ask a model": """
        reward_model.enable reward.reward_model.enable reward_model.enable_resource_pool""",
    "env.reward=package.module:function does what a reward manager does": """
        reward_model.reward_manager reward.reward_manager.name reward.reward_manager.module.path
        reward_model.reward_loop_*""",
    "no penalty grows with the length; algorithm.mask_truncated=true leaves cut responses out": """
        *.overlong_buffer_cfg.enable *.overlong_buffer.enable""",
    "a function in env.reward may run code itself, in a process with limits": """
        sandbox_fusion.url reward.sandbox_fusion.url reward_model.sandbox_fusion.url""",
    "an env answers responses by itself (`env.max_turns`): no tools of verl's": """
        *.multi_turn.enable *.multi_turn.*_path *.multi_turn.completion_callback *.tool_config_path
        data.function_tool_path *.agent_loop_config_path *.custom_async_server.path
        data.continuous_token.enable *.chat_scheduler""",
    "data.train_files takes ready-made files: write yours with the rows as they shall be": """
        data.custom_cls.path data.datagen.path data.sampler.class_path
        data.apply_chat_template_kwargs* data.mm_processor_kwargs""",
    "the model's own tokenizer and chat template are used: edit them in its folder": """
        data.tokenizer *.custom_chat_template""",
    "a model is what its folder says: edit config.json there": """
        *.override_config *.override_config.* *.external_lib *.hf_config_path""",
    "training starts from model.path: merge the adapter into it first": """
        *.lora_adapter_path *.lora.adapter_path""",
    "there is no second model to learn from": "distillation.enabled",
    "weights and engines are float32 or bfloat16 (model.dtype)": """
        *.qat.enable *.rollout.quantization *.rollout.quantization_config_file
        *.rollout.qat""",
    "`countdown-train evaluate checkpoint=...` tests without training": "trainer.val_only",
    "run_id=RUN goes on with a run, model.path=CHECKPOINT starts from its weights": """
        trainer.resume_from_path""",
    "engines sample until the end of text; a longer response is cut": "*.rollout.ignore_eos",
    "no sample is weighed or drawn twice by its score": "algorithm.use_pf_ppo",
    "no draft model speeds the engine up": "*.mtp.enable",
    "rejection of whole responses is not known: actor.importance_cap weighs tokens": """
        *.rollout_correction.rollout_rs *.rollout_correction.rollout_token_veto_threshold
        algorithm.rollout_is_veto_threshold""",
    "TensorBoard and metrics.jsonl have the timings; no profiler is started": """
        global_profiler.tool *.profiler.tool trainer.profile_steps *.profiler.enable""",
    "the optimizer is AdamW with betas 0.9 and 0.999; lr falls to 0 where it falls": """
        *.optim.min_lr_ratio *.optim.min_lr *.optim.min_lr_factor *.optim.lr_min *.optim.lr_start
        *.optim.override_optimizer_config""",
}
"""What it would take here -> settings that ask for something there is not; off, they ask nothing.

A value that is on is a warning."""

_SHARDING: Final = "resources.learner_ranks alone says how the learner is sharded"
_SPLIT: Final = (
    "the learner splits by actor.micro_batch_tokens alone, and by itself where memory ends"
)
_OPTIMIZER: Final = "the optimizer is AdamW with betas 0.9 and 0.999, rates fall to 0 if at all"
_ENGINE: Final = "the engine decides by its device and memory"

IDLE: Final[Mapping[str, str]] = {
    "of verl's own workings": """
        *._target_ hydra.* *.use_legacy_worker_impl trainer.use_v1 trainer.v1.*""",
    "of a profiler, and none is started: metrics.jsonl has each phase's time": """
        *.profiler.* global_profiler.* *npu_profile.* *nsight_options.*""",
    _SHARDING: """
        *.strategy *.fsdp_config.* critic.fsdp.* *.megatron.* *.veomni.* *.torchtitan.*
        *.ulysses_sequence_parallel_size *.nccl_timeout *.ref.param_offload
        reward_model.param_offload *.load_weight *.data_parallel_size *.expert_parallel_size
        *.moe_tensor_parallel_size *.pipeline_model_parallel_size trainer.balance_batch
        *.actor.engine.* *.ref.engine.* critic.engine.* *.model_engine""",
    "the machine's card is found": """
        trainer.device""",
    "engine and learner are processes of their own": "actor_rollout_ref.hybrid_engine",
    _SPLIT: """
        *.log_prob_micro_batch_size *.log_prob_micro_batch_size_per_gpu *.log_prob_use_dynamic_bsz
        *.log_prob_max_token_len_per_gpu *.use_dynamic_bsz critic.ppo_micro_batch_size
        critic.ppo_micro_batch_size_per_gpu critic.ppo_max_token_len_per_gpu
        critic.forward_micro_batch_size critic.forward_micro_batch_size_per_gpu
        critic.forward_max_token_len_per_gpu""",
    "log-probs and entropy never hold the logits of a whole batch": """
        *.entropy_from_logits_with_chunking *.entropy_from_logits_chunk_size
        *.entropy_checkpointing *.use_fused_kernels *.fused_kernel_options.impl_backend
        *.sum_pi_squared_checkpointing *.calculate_sum_pi_squared *.tiled_mlp.*""",
    "rows are packed by length as it is": """
        *.use_remove_padding *.pad_to_length *.pad_to_length_bucket""",
    "a group's prompt is computed once as it is": "*.use_prefix_grouper",
    "off unless you set model.use_torch_compile or model.use_liger": """
        *.use_torch_compile *.use_liger""",
    "the test split is generated at once; it never helped against memory": "data.val_batch_size",
    "a prompt beyond the limit is refused before the start, never cut": """
        data.truncation data.filter_overlong_prompts data.filter_overlong_prompts_workers""",
    "the engine takes token ids": """
        data.return_raw_input_ids data.return_raw_chat data.return_full_prompt""",
    "the order of problems and all sampling follow from `seed`": """
        data.shuffle data.validation_shuffle data.seed data.sampler.class_name *.rollout.seed
        *.data_loader_seed *.full_determinism""",
    "mini-batches are cut in the order of the step's rollouts": "*.actor.shuffle critic.shuffle",
    "columns are found by their names": """
        data.prompt_key data.reward_fn_key data.*_key data.image_patch_size
        data.return_multi_modal_inputs""",
    "files are read once, before training": "data.dataloader_num_workers data.use_shm",
    "of a class or function that is not named": """
        data.custom_cls.name data.datagen.name data.continuous_token.model_family
        reward.reward_manager.module.name reward.reward_manager.source
        *.custom_async_server.name""",
    "a step has data.train_batch_size prompts; algorithm.resample_rounds replaces groups": """
        data.gen_batch_size algorithm.filter_groups.metric
        algorithm.filter_groups.max_inflight_gen_batches *.rollout.over_sample_rate
        *.num_repeat_rollouts""",
    "no code of a model's folder is run": "*.trust_remote_code",
    "models are memory-mapped": "*.use_shm",
    "checkpointing of activations is model.gradient_checkpointing, nothing else": """
        *.enable_activation_offload""",
    "adapters go on every linear layer (model.lora_rank)": """
        *.target_modules *.exclude_modules *.lora.type *.lora.merge *.lora.dropout* *.lora.dtype
        *.lora.freeze_*
        *.lora.*_init_method *.lora.a2a_experimental critic.model.lora.* critic.model.lora_rank
        critic.model.lora_alpha *.layered_summon""",
    "of a draft model, and there is none": "*.mtp.* *.rollout.mtp",
    "of quantization, and weights are float32 or bfloat16": "*.qat.*",
    "model.path is the tokenizer's place, too": "*.tokenizer_path",
    "the critic starts from the actor's model": "critic.model.path",
    "there is no vision tower": "*.freeze_vision_tower *.freeze_moe_router",
    "of experts' routing, which Qwen2.5 has none of": """
        *.router_replay.* *.enable_rollout_routing_replay *.moe_load_balance_metrics_interval""",
    "the loss has no such term; actor.policy_loss is ppo, gspo or cispo": """
        *.policy_loss.clip_cov_* *.policy_loss.kl_cov_ratio *.policy_loss.ppo_kl_coef
        *.policy_loss.dro_beta *.policy_loss._target_ *.actor.clip_ratio_c
        *.actor.tau_pos *.actor.tau_neg""",
    "denominators come from the whole mini-batch": "*.loss_scale_factor critic.loss_agg_mode",
    "it is measured always": "*.actor.calculate_entropy *.calculate_log_probs",
    "the script's own count of steps": "*.optim.total_training_steps",
    _OPTIMIZER: """
        *.optim.override_optimizer_config.*
        *.optim.name *.optim.optimizer_impl *.optim.betas *.optim.eps
        *.optim.num_cycles *.optim.zero_indexed_step *.optim.decay_type *.optim.lr_decay_ratio
        *.optim.lr_decay_steps *.optim.lr_wsd_* *.optim.*_dtype *.optim.muon_*
        *.optim.lr_warmup_init *.optim.weight_decay_incr_style *.optim.use_*_optimizer
        *.optim.use_checkpoint_opt_param_scheduler *.ref.optim.*""",
    "a checkpoint holds all that an exact resume needs": "*.checkpoint.*",
    "algorithm.group_size is what it follows": "*.rollout_n",
    "the reference is the model as it began": "actor_rollout_ref.ref.model",
    "data.max_prompt_length and data.max_response_length hold": """
        *.rollout.prompt_length *.rollout.response_length *.rollout.max_model_len""",
    _ENGINE: """
        *.rollout.enforce_eager *.rollout.cudagraph_capture_sizes *.rollout.max_num_batched_tokens
        *.rollout.enable_chunked_prefill *.rollout.enable_prefix_caching
        *.rollout.scheduling_policy *.rollout.engine_kwargs.* *.rollout.multi_stage_wake_up
        *.rollout.limit_images *.rollout.use_fire_sampling *.rollout.skip_tokenizer_init""",
    "responses are generated by engines beside the learner (rollout.staleness: ahead of it)": """
        *.rollout.mode *.rollout.nnodes *.rollout.n_gpus_per_node *.rollout.disaggregation.*
        *.rollout.agent.* *.rollout.multi_turn.*""",
    "model.dtype holds for learner and engine alike": "*.rollout.dtype",
    "engines load what the learner loads, and get its weights after each step": """
        *.rollout.load_format *.rollout.layer_name_map.* *.checkpoint_engine.*
        *.update_weights_bucket_megabytes""",
    "temperature decides": "*.rollout.do_sample",
    "log-probs are those that were sampled from": "*.rollout.logprobs_mode",
    "the engine's log is in the run's folder": "*.rollout.disable_log_stats",
    "tests while training are greedy; evaluation.samples_per_problem samples after it": """
        *.rollout.val_kwargs.*""",
    "every rollout is in the run's rollouts/": """
        *.rollout.trace.* trainer.rollout_data_dir trainer.validation_data_dir
        trainer.log_val_generations trainer.val_generations_to_log_to_wandb""",
    "rollouts are always generated": "*.rollout.skip* skip.*",
    "Prometheus is not served: metrics.jsonl and TensorBoard have the numbers": """
        *.rollout.prometheus.*""",
    "actor.importance_cap corrects the gap between engine and learner, token by token": """
        *.rollout_correction.rollout_is *.rollout_correction.rollout_rs_threshold*
        *.rollout_correction.bypass_mode *.rollout_correction.loss_type
        *.rollout_correction.use_policy_gradient *.rollout_is_batch_normalize
        algorithm.rollout_is algorithm.rollout_is_level algorithm.rollout_is_mode
        algorithm.rollout_is_threshold_lower""",
    "no sample is weighed by its score": "algorithm.pf_ppo.*",
    "actor.mini_batch_size holds for both": "critic.ppo_mini_batch_size",
    "actor.ppo_epochs holds for both": "critic.ppo_epochs",
    "algorithm.estimator=gae has a critic, no other has": "critic.enable",
    "of a reward model or manager, and a rule scores": """
        reward_model.* reward.reward_model.* reward.num_workers *.reward_kwargs.*""",
    "of a sandbox, and a rule scores": "*sandbox_fusion.*",
    "of a teacher, and there is none": "distillation.*",
    "rollouts go from process to process through Ray's store": "transfer_queue.*",
    "Ray takes what the machine has; resources.* gives each process its share": """
        ray_init.* ray_kwargs.* trainer.ray_wait_register_center_timeout
        trainer.esi_redundant_time""",
    "the untrained model is always tested first": "trainer.val_before_train",
    "files stay under storage.root": """
        trainer.default_hdfs_dir trainer.default_local_dir trainer.del_local_ckpt_after_load""",
    "run_id=NAME names a run": "trainer.experiment_name",
    "the same command resumes by itself": "trainer.resume_mode",
    "checkpoints.quota_bytes decides": """
        trainer.remove_previous_ckpt_in_save trainer.max_critic_ckpt_to_keep""",
}
"""Reason -> settings that do nothing here, whatever their value."""


@cache
def _patterns() -> tuple[tuple[str, str, bool], ...]:
    """All patterns in order, with what is said of them and whether they ask for what we lack."""
    return tuple(
        (pattern, reason, is_lacking)
        for table, is_lacking in ((LACKING, True), (IDLE, False))
        for reason, patterns in table.items()
        for pattern in patterns.split()
    )


def meaning(key: str, value: str) -> tuple[str, bool] | None:
    """Returns why a setting of verl's does nothing here, and whether it asks for what we lack.

    Args:
        key: verl's.
        value: as it is written; False, null and their like ask for nothing.

    Returns:
        None where verl is not known to have such a setting.
    """
    for pattern, reason, is_lacking in _patterns():
        if fnmatchcase(key, pattern):
            return reason, is_lacking and value.strip(" '\"").lower() not in _OFF
    return None


def plain_names() -> tuple[str, ...]:
    """Returns the names that are spelled out, to be suggested in place of a misspelt one."""
    return tuple(pattern for pattern, _, _ in _patterns() if "*" not in pattern)
