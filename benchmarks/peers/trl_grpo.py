"""TRL's GRPOTrainer for step_time.py, in an environment of its own.

python benchmarks/peers/trl_grpo.py MODEL_FOLDER VARIANT [MICRO_BATCH]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from datasets import Dataset
from timed import Stepwise, time_generation
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from workload import (
    GRPO_KL_COEF,
    LEARNING_RATE,
    RESPONSE_TOKENS,
    VARIANTS,
    Gate,
    prompts,
    reward,
    text,
)

MICRO_BATCH = {"3m": 16, "135m": 8}
"""TRL's best, of 8, 16, 32 and 64 (the larger model: of 8 and 16)."""


def even_tokens(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Returns the benchmark's rewards."""
    return [reward(ids) for ids in completion_ids]


def main() -> None:
    """Steps until standard input ends."""
    model_path, variant = sys.argv[1], VARIANTS[sys.argv[2]]
    micro_batch = int(sys.argv[3]) if len(sys.argv) > 3 else MICRO_BATCH[variant.model]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_path)
    tokenizer.pad_token = text([0])  # masked, but looked up in the embedding
    config = GRPOConfig(
        output_dir=f"{model_path}/trl_grpo",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=variant.completions // micro_batch,
        num_generations=variant.group_size,
        max_completion_length=RESPONSE_TOKENS,
        temperature=1.0,
        beta=GRPO_KL_COEF if variant.has_reference else 0.0,
        num_iterations=1,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=variant.in_bfloat16,
        use_cpu=True,
        max_steps=10_000,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
        reward_funcs=even_tokens,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [text(ids) for ids in prompts(variant)]}),
        processing_class=tokenizer,
    )
    assert trainer.model.dtype == torch.float32
    gate = Gate()
    time_generation(trainer.model, gate)
    trainer.add_callback(Stepwise(gate))
    trainer.train()


if __name__ == "__main__":
    main()
