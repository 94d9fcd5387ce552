"""PEFT adapters of small models."""

from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner

IDS = torch.tensor([[5, 6, 7, 8, 9]])


def save_adapter(base: Path, folder: Path, **settings: Any) -> torch.Tensor:
    """Saves an adapter with random B; returns PEFT's logits of IDS."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], **settings}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**lora))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight.data, std=0.1)
    adapted.save_pretrained(folder)
    with torch.no_grad():
        logits: torch.Tensor = adapted.eval()(IDS).logits
    return logits


def save_learner(base: Path, folder: Path) -> Learner:
    """Saves a checkpoint of a learner whose adapter has a random B; returns the learner."""
    learner = Learner(RunConfig.model_validate({"model": {"lora_rank": 4}}), base)
    for name, weight in learner.models.actor.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight.data, std=0.1)
    learner.save(folder)
    return learner
