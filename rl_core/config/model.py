"""Settings of the model that is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl_core.section import Section


class ModelConfig(Section):
    """The model that is trained."""

    path: str | None = None
    """A local folder, a Hugging Face name, `modelscope:OWNER/NAME`, a GGUF file, or `package:NAME`,
    an installed package that holds a model; by default the home-made base model (`base_model`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute type of learner and rollout; master weights and optimizer state stay float32."""
    gradient_checkpointing: bool = False
    """Keeps one activation per layer and computes the rest again: less memory, a third slower."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the adapters that learn in place of the weights, 0 to train the weights themselves.

    On every linear layer of actor and critic; learning rates want to be about ten times as high.
    """
    lora_alpha: float = Field(16.0, gt=0)
    """What adapters add is scaled by `lora_alpha / lora_rank`."""
    load_in_4bit: bool = False
    """QLoRA: the weights beside the adapters take 4 bits each (NF4, package `bitsandbytes`).

    The policy starts from the rounded weights, and engines and checkpoints get those.
    """

    @model_validator(mode="after")
    def _learns_beside_4_bits(self) -> ModelConfig:
        if self.load_in_4bit and not self.lora_rank:
            raise ValueError(
                "model.load_in_4bit=true has weights that cannot learn: adapters must, set "
                "model.lora_rank=16 or so, or load_in_4bit=false"
            )
        return self
