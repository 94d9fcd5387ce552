"""Settings of the rollout engines, and of the machines' resources."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rl_core.section import Section
from rl_core.system.devices import named_card


class RewardConfig(Section):
    """The processes that call the function of `env.reward`, and their limits."""

    workers: int = Field(1, ge=1)
    """Processes that call `env.reward`, and as many that call the env's tools."""
    timeout_s: float = Field(5.0, gt=0)
    """Seconds that `env.reward` may take for one response, or a tool for one call."""
    concurrency: int = Field(64, ge=1, le=4_096)
    """Responses that an `async def` of `env.reward` scores at a time, in one process."""
    env: tuple[str, ...] = ()
    """Environment variables that `env.reward` gets although they look like credentials: [NAME]."""
    memory_mib: int = Field(4_096, ge=64)
    """Address space of each process that calls `env.reward` or tools."""


class RolloutConfig(Section):
    """Generation of responses."""

    engine: Literal["vllm", "hf"] = "vllm"
    """`hf` generates with transformers: slower, and runs wherever torch does."""
    num_engines: int = Field(1, ge=1)
    """Rollout actors; the batch is split evenly between them."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs of each vLLM engine, which share its model; on a CPU, processes."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling temperature in training: 1 samples the policy itself, less prefers likely tokens."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Must be 1: less would renormalise the sampled probabilities, and the learner does not."""
    top_k: int = Field(-1, ge=-1)
    """Must be -1 or 0, which keep all tokens: fewer would not match the learner's log-probs."""
    kv_cache_mib: int = Field(128, ge=16)
    """KV cache of a CPU engine."""
    gpu_memory_utilization: float = Field(0.4, gt=0, lt=1)
    """Share of the card that a GPU engine may use next to the learner."""
    sleep: bool = False
    """A vLLM engine on a GPU frees its memory while the learner works on the same card."""
    max_num_seqs: int = Field(256, ge=1)
    """Responses that the engine generates at a time, at most: fewer after memory ran out."""
    staleness: int = Field(0, ge=0, le=1)
    """Updates, at most, between the policy that sampled a token and the one that learns from it.

    0: generating and learning take turns. 1: the next responses are generated during learning."""

    @model_validator(mode="after")
    def _samples_the_policy_itself(self) -> RolloutConfig:
        why = "renormalises what is sampled, so the learner's log-probs would not match"
        if self.top_p < 1:
            raise ValueError(f"rollout.top_p={self.top_p} {why}: use 1.0")
        if self.top_k > 0:
            raise ValueError(f"rollout.top_k={self.top_k} {why}: use -1")
        return self

    @model_validator(mode="after")
    def _can_be_split(self) -> RolloutConfig:
        if self.engine == "hf" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"rollout.tensor_parallel_size={self.tensor_parallel_size} is vLLM's, and "
                "rollout.engine=hf keeps a model whole: use 1, or rollout.engine=vllm"
            )
        return self


class ResourcesConfig(Section):
    """What Ray may use."""

    ray_address: str | None = None
    """A running cluster, `host:port` or `auto`, if you are on one of its machines; its token is in
    RAY_AUTH_TOKEN. By default a private one-machine Ray lives as long as the run."""
    learner_ranks: int = Field(1, ge=1)
    """Processes of the learner, each with a share of all weights and of each mini-batch (FSDP2)."""
    learner_threads: int = Field(2, ge=1)
    """CPU threads of each learner rank."""
    rollout_threads: int = Field(1, ge=1)
    """Threads of each rollout actor."""
    learner_gpus: float = Field(0.0, ge=0)
    """Share of a GPU, or GPUs, of each learner rank; 0 computes on the CPU."""
    rollout_gpus: float = Field(0.0, ge=0)
    """Share of a GPU, or GPUs, of each rollout actor; 0 computes on the CPU."""
    offload: bool = False
    """Reference and optimizer state of a GPU learner wait in the machine's memory between uses."""
    gpu_memory_gib: float | None = Field(None, gt=0)
    """Memory of the card that the run is planned for, which preflight compares with the plan."""
    card: Annotated[str, AfterValidator(lambda name: named_card(name).name)] | None = None
    """The card that the run is planned for, as in `RTX 4090`, `A100 80GB`, `H100`: preflight takes
    hours, price and memory (in place of `gpu_memory_gib`) from its known data; by default the
    card that is there."""

    @property
    def planned_card_gib(self) -> float | None:
        """Memory of the card that the settings name; None if they name none."""
        return self.gpu_memory_gib if self.card is None else named_card(self.card).memory_gib
