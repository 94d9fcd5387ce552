"""How many bytes a run needs in each phase: computed from shape and settings before the start.

Nothing is measured, and torch is not imported. Learner and engine are separate processes, which may
share a card or a machine's memory; a process's own memory (torch, CUDA) is not included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rl_core.config.model import BaseModelConfig
from rl_core.config.run import RunConfig
from rl_core.resources.placement import asked_at_a_time
from rl_core.system.model_folder import CONFIG, read_object

_FLOAT32 = 4
_LOGIT_BLOCK, _CARD_LOGIT_BLOCK = 2**21 * _FLOAT32, 2**25 * _FLOAT32
_KEPT_LOGITS = 2**25 * _FLOAT32  # these three as in models/logprobs.py
_MOMENT_BLOCK, _4BIT_BLOCK = 256, 64
"""Numbers that share one scale: learner/adamw_8bit.py, models/linear_4bit.py."""
_LIVE_BLOCKS = 4  # logits, their exponentials, and what an operation makes of them


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder with gated MLPs and grouped attention (Qwen, Llama)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tied: bool
    """Whether input and output embedding are one tensor."""
    attention_bias: bool
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head (Qwen3)."""
    in_bfloat16: bool = False
    """Whether the files hold bfloat16."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Returns the shape that a Hugging Face `config.json` describes.

        Raises:
            ValueError: if it describes no such decoder.
        """
        try:
            heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
            kind = config.get("model_type")
            return cls(
                hidden_size=hidden,
                intermediate_size=int(config["intermediate_size"]),
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden // heads),
                vocab_size=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                attention_bias=bool(config.get("attention_bias", kind == "qwen2")),
                qk_norm=kind == "qwen3",
                in_bfloat16=config.get("dtype", config.get("torch_dtype")) == "bfloat16",
            )
        except KeyError as error:
            raise ValueError(f"config.json has no {error}: its memory cannot be planned") from None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelShape:
        """Returns the shape of a model folder, see `from_config`."""
        return cls.from_config(read_object(folder / CONFIG))

    @classmethod
    def of_base_model(cls, settings: BaseModelConfig) -> ModelShape:
        """Returns the shape of the home-made base model."""
        return cls(
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size,
            num_layers=settings.num_layers,
            num_heads=settings.num_heads,
            num_kv_heads=settings.num_heads,
            head_size=settings.hidden_size // settings.num_heads,
            vocab_size=settings.vocab_size,
            tied=True,
            attention_bias=True,
        )

    @property
    def _query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def _kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def num_layer_matrices(self) -> int:
        """Parameters in the matrices of one layer, without biases."""
        attention = 2 * (self._query_size + self._kv_size)
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def attention_size(self) -> int:
        """Numbers that attention keeps per token and layer: query, key, value, output."""
        return 2 * (self._query_size + self._kv_size)

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one layer."""
        bias = self._query_size + 2 * self._kv_size if self.attention_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_size if self.qk_norm else 0)
        return self.num_layer_matrices + bias + norms

    @property
    def num_backbone_parameters(self) -> int:
        """Parameters without an output embedding: those of a critic without its head."""
        layers = self.num_layers * self.num_layer_parameters
        return self.vocab_size * self.hidden_size + layers + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters of the causal LM; a tied embedding counts once."""
        head = 0 if self.tied else self.vocab_size * self.hidden_size
        return self.num_backbone_parameters + head

    def num_adapter_parameters(self, rank: int) -> int:
        """Parameters of low-rank adapters on all linear layers."""
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = 2 * (hidden + self._query_size) + 2 * (hidden + self._kv_size)
        return self.num_layers * rank * (attention + 3 * (hidden + inner))

    def activation_bytes(
        self, num_tokens: int, *, dtype: str, checkpointed: bool, casts_weights: bool = True
    ) -> int:
        """Returns what a forward pass over a padded micro-batch keeps for its backward pass.

        Under autocast, norms keep float32, and bfloat16 copies of the weights are kept too, unless
        the weights are bfloat16. With checkpoints each layer keeps only its input; only one layer
        at a time keeps the rest too.
        """
        hidden, inside = self.hidden_size, 4 * self.intermediate_size + self.attention_size
        if dtype == "float32":
            per_token, weights = _FLOAT32 * (inside + 6 * hidden + self.num_heads + 2), 0
        else:
            in_float32 = 4 * hidden + self.num_heads + 2
            per_token = 2 * (inside + 5 * hidden) + _FLOAT32 * in_float32
            weights = 2 * self.num_layer_parameters if casts_weights else 0
        layer = num_tokens * per_token + weights
        if checkpointed:
            return self.num_layers * num_tokens * hidden * _FLOAT32 + layer
        return self.num_layers * layer

    def kv_bytes(self, width: int) -> int:
        """Returns the bytes of a token in a KV cache whose numbers have `width` bytes."""
        return 2 * self.num_layers * self._kv_size * width


@dataclass(frozen=True)
class PhaseMemory:
    """The peak of one phase, in bytes by their use."""

    phase: str
    process: str
    """`learner` or `engine`."""
    parts: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())


def memory_plan(shape: ModelShape, config: RunConfig) -> list[PhaseMemory]:
    """Returns the learner's phases in their order, then the engine's.

    The shape is the actor's without adapters; critic and reference have the same backbone.
    """
    return [*_learner_phases(shape, config), _engine_phase(shape, config)]


def micro_batch_tokens(config: RunConfig) -> int:
    """Returns the padded tokens of the largest micro-batch."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return min(max(config.actor.micro_batch_tokens, longest), num_rows * longest)


def resting_learner(shape: ModelShape, config: RunConfig) -> PhaseMemory:
    """Returns what a learner rank holds between two steps."""
    models, ranks = model_sizes(shape, config), config.resources.learner_ranks
    learning = math.ceil((models.actor + models.critic) / ranks)
    # With adapters, the frozen weights are not sharded: all models share them.
    frozen = frozen_bytes(shape, config)
    resident = {
        "weights": _FLOAT32 * learning
        + (frozen if config.model.lora_rank else math.ceil(frozen / ranks)),
        "optimizer": moment_bytes(learning, config),
    }
    if _offloads(config):
        away = math.ceil(_offloaded_reference(models, config) / ranks)
        resident = {"weights": resident["weights"] - away}
    # With a learner on a card, the snapshot is in the machine's memory.
    if config.checkpoints.in_background and not config.resources.learner_gpus:
        resident["snapshot"] = math.ceil(snapshot_bytes(shape, config) / ranks)
    return PhaseMemory("rest", "learner", resident)


def snapshot_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of the copy from which a checkpoint is written.

    It holds the weights that learn and their moments and, with adapters, the merged model.
    """
    models = model_sizes(shape, config)
    merged = shape.num_parameters if config.model.lora_rank else 0
    both = models.actor + models.critic
    return _FLOAT32 * (merged + both) + moment_bytes(both, config)


def offloaded_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns what `resources.offload` keeps in the machine's memory: of all ranks, at rest."""
    models = model_sizes(shape, config)
    moments = moment_bytes(models.actor + models.critic, config) if _offloads(config) else 0
    return moments + _offloaded_reference(models, config)


def moment_bytes(num_parameters: int, config: RunConfig) -> int:
    """Returns the bytes of AdamW's moments of so many weights.

    With 8 bits, blocks of 256 have a scale; norms and biases (float32) are too few to count.
    """
    if config.actor.optimizer == "adamw_8bit":
        return 2 * (num_parameters + _FLOAT32 * math.ceil(num_parameters / _MOMENT_BLOCK))
    return 2 * _FLOAT32 * num_parameters


def frozen_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of all weights that do not learn; in 4 bits, blocks of 64 have a scale."""
    in_float32 = model_sizes(shape, config).frozen
    if not config.model.lora_rank:
        return _FLOAT32 * in_float32
    matrices = shape.num_layers * shape.num_layer_matrices
    packed = matrices if config.model.load_in_4bit else 0
    in_bfloat16 = 0
    if _holds_bfloat16(shape, config):
        embeddings = (1 if shape.tied else 2) * shape.vocab_size * shape.hidden_size
        in_bfloat16 = embeddings + matrices - packed
    in_float32 += math.ceil(packed / _4BIT_BLOCK) - packed - in_bfloat16
    return _FLOAT32 * in_float32 + 2 * in_bfloat16 + packed // 2


def _holds_bfloat16(shape: ModelShape, config: RunConfig) -> bool:
    """Whether frozen matrices are kept in bfloat16, see models/lora.py."""
    is_lossless = shape.in_bfloat16 and config.compute_dtype == "bfloat16"
    return is_lossless and config.model.lora_rank > 0


class ModelSizes(NamedTuple):
    """Numbers of parameters: those that learn (actor, critic), and those that do not."""

    actor: int
    critic: int
    frozen: int


def model_sizes(shape: ModelShape, config: RunConfig) -> ModelSizes:
    """Returns the sizes of a run's models; those with adapters share the weights below them."""
    has_critic, rank = config.algorithm.formula.needs_critic, config.model.lora_rank
    adapters = shape.num_adapter_parameters(rank)
    critic = shape.hidden_size + 1 + (adapters if rank else shape.num_backbone_parameters)
    return ModelSizes(
        actor=adapters if rank else shape.num_parameters,
        critic=critic if has_critic else 0,
        frozen=shape.num_parameters if rank or config.algorithm.has_reference else 0,
    )


def _offloads(config: RunConfig) -> bool:
    return config.resources.learner_gpus > 0 and config.resources.offload


def _offloaded_reference(models: ModelSizes, config: RunConfig) -> int:
    """Returns the bytes of a reference that is on the card only for a pass; adapters have none."""
    return _FLOAT32 * models.frozen if _offloads(config) and not config.model.lora_rank else 0


def _learner_phases(shape: ModelShape, config: RunConfig) -> list[PhaseMemory]:
    models, rank = model_sizes(shape, config), config.model.lora_rank
    resident = resting_learner(shape, config).parts
    reference = _offloaded_reference(models, config)
    on_gpu, ranks = config.resources.learner_gpus > 0, config.resources.learner_ranks
    threads = 1 if on_gpu or ranks > 1 else config.resources.learner_threads
    tokens, checkpoints = micro_batch_tokens(config), config.model.gradient_checkpointing
    casts_weights = config.compute_dtype != "float32" and not _holds_bfloat16(shape, config)
    kept = shape.activation_bytes(
        tokens,
        dtype=config.compute_dtype,
        checkpointed=checkpoints,
        casts_weights=casts_weights,
    )
    kept += _packed_attention_bytes(shape, config)
    adds = tokens < config.actor.mini_batch_size * config.algorithm.group_size * (
        config.data.max_prompt_length + config.data.max_response_length
    )
    # Copies of the weights for all micro-batches; without checkpoints, `kept` includes them.
    is_cast = adds and checkpoints and casts_weights and ranks == 1
    # The widest moment of a layer: an MLP's gate, up, activation and product, or their gradients.
    passing = tokens * _FLOAT32 * (4 * shape.intermediate_size + 4 * shape.hidden_size)
    if rank:  # beside a product: B A x, that scaled, the sum, and peft's float32 copy of x
        copies = 3 if config.compute_dtype == "float32" else 4
        passing += copies * tokens * _FLOAT32 * shape.intermediate_size
    if config.model.load_in_4bit:  # a product needs its whole matrix unpacked
        passing += compute_width(config) * shape.hidden_size * shape.intermediate_size

    def update(phase: str, num_parameters: int, logits: int) -> PhaseMemory:
        share = math.ceil(num_parameters / ranks)
        parts = {
            "gradients": _FLOAT32 * share,  # one for all threads, see `accumulate`
            "activations": threads * (kept + passing),
            "logits": threads * logits,
        }
        if is_cast and not on_gpu:
            parts["copies"] = 2 * shape.num_layers * shape.num_layer_parameters
        if logits and not rank:
            # The head's gradient before it is added; if tied, at the end, also that of the inputs.
            head = threads * _FLOAT32 * shape.vocab_size * shape.hidden_size
            at_end = (adds + shape.tied) * head - parts["activations"] - parts["logits"]
            parts["embedding"] = max(adds * head, at_end)
        moments = {"gradients": parts["gradients"], "optimizer": moment_bytes(share, config)}
        if ranks > 1:
            parts["gathered"] = _gathered_bytes(shape, config, num_parameters, learns=True)
        if _offloads(config) and sum(moments.values()) > sum(parts.values()):
            parts = moments  # moments come after activations and gathered weights are freed
        return PhaseMemory(phase, "learner", {**resident, **parts})

    block = _LIVE_BLOCKS * (_CARD_LOGIT_BLOCK if on_gpu else _LOGIT_BLOCK)
    forward = {
        # A sharded reference is gathered from the machine's memory.
        "weights": resident["weights"] + (reference if ranks == 1 else 0),
        "activations": threads * passing,
        "logits": threads * block,
    }
    if ranks > 1:
        largest = max(models.actor, models.critic, 0 if rank else models.frozen)
        forward["gathered"] = _gathered_bytes(shape, config, largest, learns=False)
    phases = [PhaseMemory("log_probs", "learner", {**resident, **forward})]
    if models.critic:
        phases.append(update("update_critic", models.critic, 0))
    logits = block if on_gpu else block + _kept_logits(shape, config)
    return [*phases, update("update_actor", models.actor, logits)]


def _kept_logits(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of kept logits beyond a block; a group's responses share one prompt."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    share = response / (prompt / config.algorithm.group_size + response)
    kept = math.ceil(share * micro_batch_tokens(config)) * shape.vocab_size * _FLOAT32
    return max(0, min(kept, _KEPT_LOGITS) - _LOGIT_BLOCK)


def _gathered_bytes(
    shape: ModelShape, config: RunConfig, num_parameters: int, *, learns: bool
) -> int:
    """Returns the bytes that FSDP gathers of a sharded model: all outside of layers, some layers.

    Forward, three layers: the one that computes, the next, and their transfer buffer. Backward, two
    more: one layer's gradient, and its copy in the buffer.
    """
    rank = config.model.lora_rank
    of_layers = shape.num_adapter_parameters(rank)
    if not rank:
        of_layers = shape.num_layers * shape.num_layer_parameters
    layer = of_layers // shape.num_layers
    return _FLOAT32 * (num_parameters - of_layers + (5 if learns else 3) * layer)


def _packed_attention_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes that attention keeps since each row of a group reads the shared prompt.

    Queries, keys, values and outputs of the tokens that are read again (models/packing.py), in each
    layer, or in one if layers are checkpointed. No attention here has a mask [rows, rows].
    """
    checkpointed, size = config.model.gradient_checkpointing, config.algorithm.group_size
    on_ranks = config.resources.learner_ranks > 1
    if not (checkpointed or on_ranks or config.resources.learner_gpus > 0):
        return 0
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    rows = micro_batch_tokens(config) * size * (prompt + response) / (prompt + size * response)
    more = math.ceil(rows) - micro_batch_tokens(config)
    num_layers = 1 if checkpointed else shape.num_layers
    return num_layers * more * shape.attention_size * compute_width(config)


def compute_width(config: RunConfig) -> int:
    """Returns the bytes of a number in the type that learner and engines compute in."""
    return _FLOAT32 if config.compute_dtype == "float32" else 2


def _engine_phase(shape: ModelShape, config: RunConfig) -> PhaseMemory:
    """Returns an engine's peak; if it is split over GPUs, the peak on each GPU."""
    width, on_gpu = compute_width(config), config.resources.rollout_gpus > 0
    parts_of_model = config.rollout.tensor_parallel_size if on_gpu else 1
    weights = width * shape.num_parameters // parts_of_model
    # Weights are replaced in place, but only after all new ones have arrived.
    parts = {"weights": weights, "incoming_weights": weights}
    (num_seqs, num_prompts), data = asked_at_a_time(config), config.data
    if config.rollout.engine == "hf":
        longest = data.max_prompt_length + data.max_response_length
        parts["kv_cache"] = num_seqs * longest * shape.kv_bytes(width)
        # All prompts are read at once, layer by layer; with turns, the whole conversation is.
        prompt = data.max_prompt_length if config.env.max_turns == 1 else longest
        per_token = _FLOAT32 * 4 * (shape.intermediate_size + shape.hidden_size)
        parts["activations"] = num_prompts * prompt * per_token
        parts["logits"] = _LIVE_BLOCKS * num_seqs * shape.vocab_size * _FLOAT32
    elif not on_gpu:
        parts["kv_cache"] = config.rollout.kv_cache_mib * 2**20
        # vLLM packs the head for oneDNN; if tied, it also keeps the original for embeddings.
        parts["head"] = width * shape.vocab_size * shape.hidden_size if shape.tied else 0
    return PhaseMemory("gen", "engine", parts)
