"""The settings of the home-made base model: the section `base_model`."""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from rl_core.section import Section

NUM_POSITIONS: Final = 1_024
"""Tokens that the home-made base model reads, prompt and response."""


class BaseModelConfig(Section):
    """The home-made base model, a small Qwen2 warm-started on search traces or toy solutions."""

    vocab_size: int = Field(640, ge=300, le=8_192)
    """At most: a corpus of `base` prompts is down to one token per constant phrase at about 583,
    and to one per number as well, which Countdown wants with targets up to 99, at about 690."""
    hidden_size: int = Field(128, ge=32)
    """Width of the model: for each head a multiple of 32."""
    intermediate_size: int = Field(256, ge=32)
    """Width inside each MLP."""
    num_layers: int = Field(4, ge=1)
    """Transformer layers."""
    num_heads: int = Field(4, ge=1)
    """Attention heads; keys and values have as many."""
    steps: int = Field(900, ge=1)
    """Steps of the warm start: fewer make a weaker model, sooner."""
    batch_size: int = Field(32, ge=1)
    """Examples per step."""
    lr: float = Field(0.02, gt=0)
    """Peak, for the matrices (Muon); embedding, biases and norms take 0.15 of it (AdamW)."""
    warmup_steps: int = Field(50, ge=0)
    """First steps, in which the learning rate rises from 0."""
    give_up_prob: float = Field(0.55, ge=0, le=1)
    """Chance that the model gives up: stops searching after a "no", or stops after a step."""
    max_response_tokens: int = Field(128, ge=16)
    """Longest response when it is measured, in tokens; a longer one is cut."""
    seed: int = Field(0, ge=0)
    """Seed of its weights and examples, apart from the run's seed so that runs share the model."""
    num_threads: int = Field(2, ge=1)
    """CPU threads that train it; the model is the same with any number."""

    @model_validator(mode="after")
    def _heads_fit(self) -> BaseModelConfig:
        if self.hidden_size % (32 * self.num_heads):
            raise ValueError(
                f"base_model.hidden_size={self.hidden_size} over base_model.num_heads="
                f"{self.num_heads} must be a multiple of 32: vLLM on a CPU knows no other head"
            )
        return self
