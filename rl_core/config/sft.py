"""The settings of supervised fine-tuning before training: the section `sft`."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from rl_core.section import Section

TRACE_STEPS: Final = 300
"""Of `sft.data=traces`, unless `sft.steps` says otherwise."""


class SftConfig(Section):
    """Supervised fine-tuning (SFT) of the model that `model.path` names, before it is trained.

    Memory is as the learner's: `model.dtype`, `model.gradient_checkpointing` and
    `actor.micro_batch_tokens` hold here, too.
    """

    data: str | None = None
    """`traces`: solutions in words of the train split's problems; or a FILE, JSON lines or parquet,
    of `prompt` and `response`, or of `messages`; null: none."""
    steps: int | None = Field(None, ge=1)
    """Optimizer steps; by default `epochs` passes over a FILE, or 300 of traces."""
    give_up_prob: float = Field(0.0, ge=0, le=1)
    """Of `traces` of Countdown: above 0 they are blind searches, right as often as chance has it,
    which give up after each wrong try with this probability and answer it; going on is then left
    for training to find. With 0 they know the solution and end with it."""
    epochs: int = Field(2, ge=1)
    """Passes over a FILE, unless `steps` says how many steps."""
    batch_size: int = Field(32, ge=1)
    """Examples per step."""
    lr: float = Field(1e-5, gt=0)
    """Peak (AdamW), then down to 0 along a cosine; adapters want about ten times as much."""
    warmup_steps: int = Field(10, ge=0)
    """First steps, in which the learning rate rises from 0."""
    lora_rank: int | None = Field(None, ge=0)
    """Rank of adapters that learn in place of the weights and are merged at the end; 0: the weights
    themselves learn; by default as `model.lora_rank`."""
    max_length: int = Field(2_048, ge=16)
    """Longest example, prompt and response, in tokens: a longer row of a FILE is refused."""
    held_out: int = Field(256, ge=1)
    """Examples whose loss is measured and not learned; of a FILE at most a tenth of its rows."""
    save_freq: int = Field(100, ge=1)
    """Steps between measurements of that loss, and between what a killed SFT goes on from."""
    seed: int = Field(0, ge=0)
    """Of order, traces and fresh adapters, apart from the run's seed so that runs share the
    model."""
