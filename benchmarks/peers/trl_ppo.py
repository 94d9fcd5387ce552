"""TRL's experimental PPOTrainer for step_time.py, in an environment of its own.

python benchmarks/peers/trl_ppo.py MODEL_FOLDER VARIANT [MICRO_BATCH]
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from timed import Stepwise, time_generation
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from workload import (
    LEARNING_RATE,
    PPO_KL_COEF,
    RESPONSE_TOKENS,
    VARIANTS,
    Gate,
    prompts,
    reward,
    text,
)

MICRO_BATCH = 16
"""TRL's best, of 8, 16, 32 and 64."""


class _TokenIds(nn.Module):
    """Takes the place of a reward model's backbone; its hidden states are the token ids."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=[input_ids.unsqueeze(-1)])


class RuleReward(nn.Module):
    """The benchmark's reward in the shape of a reward model, the only one that PPOTrainer takes."""

    base_model_prefix = "backbone"

    def __init__(self) -> None:
        super().__init__()
        self.backbone = _TokenIds()

    def score(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns each row's reward at all of its tokens, float32 [B, L, 1]."""
        rows = token_ids[:, -RESPONSE_TOKENS:, 0].tolist()
        rewards = torch.tensor([reward(row) for row in rows])
        return rewards[:, None, None].expand(*token_ids.shape)


def main() -> None:
    """Steps until standard input ends."""
    model_path, variant = sys.argv[1], VARIANTS[sys.argv[2]]
    micro_batch = int(sys.argv[3]) if len(sys.argv) > 3 else MICRO_BATCH
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_path)
    tokenizer.pad_token = text([0])  # masked, but looked up in the embedding
    config = PPOConfig(
        output_dir=f"{model_path}/trl_ppo",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=variant.completions // micro_batch,
        local_rollout_forward_batch_size=variant.completions,
        num_ppo_epochs=1,
        num_mini_batches=1,
        total_episodes=10_000 * variant.completions,
        response_length=RESPONSE_TOKENS,
        temperature=1.0,
        kl_coef=PPO_KL_COEF,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        num_sample_generations=0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [ids for ids in prompts(variant) for _ in range(variant.group_size)]
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32) for _ in range(2)
    )
    critic = AutoModelForSequenceClassification.from_pretrained(
        model_path, num_labels=1, dtype=torch.float32
    )
    trainer = PPOTrainer(
        args=config,
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=RuleReward(),
        value_model=critic,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
    )
    gate = Gate()
    time_generation(policy, gate)
    trainer.add_callback(Stepwise(gate))
    trainer.train()


if __name__ == "__main__":
    main()
