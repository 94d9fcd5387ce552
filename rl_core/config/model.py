"""Settings of the model that is trained: the home-made one, and supervised fine-tuning, too."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from rl_core.section import MAX_INT, Section

NUM_POSITIONS: Final = 1_024
"""Tokens that the home-made base model reads, prompt and response."""
GIVE_UP_PROB: Final = 0.3
"""The default of `sft.give_up_prob`."""
TRACES: Final = "traces"
"""The value of `sft.data` that makes the examples of the problems themselves."""
TRACE_STEPS: Final = 300
"""Steps of `sft.data=traces`, unless `sft.steps` is set."""


class ModelConfig(Section):
    """The model that is trained."""

    path: str | None = None
    """A folder of a model or a PEFT adapter, a Hugging Face name, `modelscope:OWNER/NAME`, a GGUF
    file, or `package:NAME`, an installed package that holds a model; by default a home-made one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Compute type of learner and rollout; master weights and optimizer state stay float32. `auto`:
    bfloat16 on a card and on a CPU on which it is faster than float32, else float32."""
    gradient_checkpointing: bool = False
    """Keeps one activation per layer and computes the rest again: less memory, a third slower."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the adapters that learn in place of the weights, 0 to train the weights themselves.

    On every linear layer of actor and critic; learning rates should be about ten times as high.
    """
    lora_alpha: float = Field(16.0, gt=0)
    """What adapters add is scaled by `lora_alpha / lora_rank`."""
    load_in_4bit: bool = False
    """QLoRA: the weights below the adapters take 4 bits each (NF4, package `bitsandbytes`).

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


class BaseModelConfig(Section):
    """The home-made base model, a small Qwen2 warm-started on search traces or toy solutions."""

    vocab_size: int = Field(640, ge=300, le=8_192)
    """Most tokens in the vocabulary. With `base` prompts, about 583 make each constant phrase one
    token, and about 690 each number too, which Countdown needs with targets up to 99."""
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
    seed: int = Field(0, ge=0, le=MAX_INT)
    """Seed of its weights and examples, apart from the run's seed so that runs share the model."""
    num_threads: int = Field(2, ge=1)
    """CPU threads that train it; the model is the same with any number."""

    @model_validator(mode="after")
    def _heads_fit(self) -> BaseModelConfig:
        if self.hidden_size % (32 * self.num_heads):
            raise ValueError(
                f"base_model.hidden_size={self.hidden_size} over base_model.num_heads="
                f"{self.num_heads} must be a multiple of 32: vLLM on a CPU has no other head size"
            )
        return self


class SftConfig(Section):
    """Supervised fine-tuning (SFT) of the model that `model.path` names, before it is trained.

    The learner's memory settings apply here too: `model.dtype`, `model.gradient_checkpointing` and
    `actor.micro_batch_tokens`.
    """

    data: str | None = None
    """`traces`: searches or solutions of the train split's problems; a RUN: its right responses,
    each once; or a FILE, JSON lines or parquet, of `prompt` and `response`, or of `messages`; null:
    none."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps; by default `epochs` passes over a FILE, or 300 of traces."""
    give_up_prob: float = Field(GIVE_UP_PROB, ge=0, le=1)
    """For `traces` of Countdown: the chance that a search gives up after a wrong try. Training must
    then find out that continuing is better."""
    epochs: int = Field(2, ge=1)
    """Passes over a FILE, unless `steps` is set."""
    batch_size: int = Field(32, ge=1)
    """Examples per step."""
    lr: float = Field(5e-5, gt=0)
    """Peak (AdamW), then down to 0 along a cosine. For models of 0.5 to 3 billion parameters;
    smaller ones take up to 2e-4, larger ones 1e-5, and adapters about five times as much."""
    warmup_steps: int = Field(10, ge=0)
    """First steps, in which the learning rate rises from 0."""
    lora_rank: int | None = Field(None, ge=0)
    """Rank of adapters that learn in place of the weights and are merged at the end; 0: the weights
    themselves learn; by default as `model.lora_rank`."""
    max_length: int = Field(2_048, ge=16)
    """Longest example, prompt and response, in tokens: a longer row of a FILE is refused."""
    held_out: int = Field(256, ge=1)
    """Examples that only measure the loss and are not learned; at most a tenth of a FILE's rows."""
    save_freq: int = Field(100, ge=1)
    """Steps between held-out losses, and between saves that a killed SFT continues from."""
    seed: int = Field(0, ge=0, le=MAX_INT)
    """Seed of order, traces and fresh adapters, apart from the run's seed so that runs share the
    model."""
