"""How many bytes a run needs in each phase: computed from shape and settings before the start.

Nothing is measured, and torch is not imported. Learner and engine are separate processes, which may
share a card or a machine's memory; a process's own memory (torch, CUDA) is not included.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from rl_core.config.run import RunConfig
from rl_core.resources.model_shape import ModelShape as ModelShape  # it is looked for here
from rl_core.resources.placement import asked_at_a_time

_FLOAT32 = 4
_LOGIT_BLOCK = 2**21 * _FLOAT32
_CARD_LOGIT_BLOCK = 2**25 * _FLOAT32
_KEPT_LOGITS = 2**25 * _FLOAT32  # these three as in models/logprobs.py
_MOMENT_BLOCK = 256
_4BIT_BLOCK = 64
"""Numbers that share one scale: learner/adamw_8bit.py, models/linear_4bit.py."""
_LIVE_BLOCKS = 4  # logits, their exponentials, and what an operation makes of them


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
    models = model_sizes(shape, config)
    ranks = config.resources.learner_ranks
    learning = math.ceil((models.actor + models.critic) / ranks)
    # With adapters, the frozen weights are not sharded: all models share them.
    frozen = frozen_bytes(shape, config)
    resident = {
        "weights": _FLOAT32 * learning
        + (frozen if config.model.lora_rank else math.ceil(frozen / ranks))
        + math.ceil(_teacher_bytes(shape, config) / ranks),
        "optimizer": moment_bytes(learning, config),
    }
    if _offloads(config):
        away = math.ceil(sum(_offloaded_frozen(shape, config)) / ranks)
        resident = {"weights": resident["weights"] - away}
    # With a learner on a card, the snapshot is in the machine's memory.
    if config.checkpoints.in_background and not config.resources.learner_gpus:
        resident["snapshot"] = math.ceil(snapshot_bytes(shape, config) / ranks)
    return PhaseMemory("rest", "learner", resident)


def snapshot_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of the copy from which a checkpoint is written.

    It holds the weights that learn and their moments and, of adapters that are merged, the model.
    """
    models = model_sizes(shape, config)
    merged = shape.num_parameters if config.model.lora_rank and config.saves_whole_models else 0
    both = models.actor + models.critic
    return _FLOAT32 * (merged + both) + moment_bytes(both, config)


def offloaded_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns what `resources.offload` keeps in the machine's memory: of all ranks, at rest."""
    models = model_sizes(shape, config)
    moments = moment_bytes(models.actor + models.critic, config) if _offloads(config) else 0
    return moments + sum(_offloaded_frozen(shape, config))


def moment_bytes(num_parameters: int, config: RunConfig) -> int:
    """Returns the bytes of AdamW's moments of so many weights.

    With 8 bits, blocks of 256 have a scale; norms and biases (float32) are too few to count.
    """
    if config.actor.optimizer == "adamw_8bit":
        return 2 * (num_parameters + _FLOAT32 * math.ceil(num_parameters / _MOMENT_BLOCK))
    return 2 * _FLOAT32 * num_parameters


def frozen_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of all weights that do not learn."""
    in_float32 = model_sizes(shape, config).frozen
    if not config.model.lora_rank:
        return _FLOAT32 * in_float32
    matrices = shape.num_layers * shape.num_layer_matrices
    packed = matrices if config.model.load_in_4bit else 0
    in_bfloat16 = 0
    if _holds_bfloat16(shape, config):
        embeddings = (1 if shape.tied else 2) * shape.vocab_size * shape.hidden_size
        in_bfloat16 = embeddings + matrices - packed
    in_float32 -= packed + in_bfloat16
    return _FLOAT32 * in_float32 + 2 * in_bfloat16 + _packed_bytes(packed)


def _teacher_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of the teacher's weights, 0 without one."""
    if config.teacher.path is None:
        return 0
    teacher = teacher_shape(shape, config)
    matrices = teacher.num_layers * teacher.num_layer_matrices
    packed = matrices if config.teacher.load_in_4bit else 0
    return _FLOAT32 * (teacher.num_parameters - packed) + _packed_bytes(packed)


def _packed_bytes(num_weights: int) -> int:
    """Returns the bytes of weights in 4 bits; each block of 64 has a scale."""
    return num_weights // 2 + _FLOAT32 * math.ceil(num_weights / _4BIT_BLOCK)


def _holds_bfloat16(shape: ModelShape, config: RunConfig) -> bool:
    """Whether frozen matrices are kept in bfloat16, see models/lora.py."""
    return config.model.lora_rank > 0 and shape.in_bfloat16 and config.compute_dtype == "bfloat16"


class ModelSizes(NamedTuple):
    """Numbers of parameters: those that learn (actor, critic), and those that do not."""

    actor: int
    critic: int
    frozen: int
    teacher: int = 0
    """Does not learn either, and shares nothing with the others."""


def model_sizes(shape: ModelShape, config: RunConfig) -> ModelSizes:
    """Returns the sizes of a run's models; those with adapters share the weights below them."""
    has_critic = config.algorithm.formula.needs_critic
    rank = config.model.lora_rank
    adapters = shape.num_adapter_parameters(rank)
    critic = shape.hidden_size + 1 + (adapters if rank else shape.num_backbone_parameters)
    return ModelSizes(
        actor=adapters if rank else shape.num_parameters,
        critic=critic if has_critic else 0,
        frozen=shape.num_parameters if rank or config.algorithm.has_reference else 0,
        teacher=0 if config.teacher.path is None else teacher_shape(shape, config).num_parameters,
    )


def teacher_shape(shape: ModelShape, config: RunConfig) -> ModelShape:
    """Returns the teacher's shape; one that is not on this machine counts as the actor's."""
    if config.teacher_folder is not None:
        with suppress(OSError, ValueError):
            return ModelShape.from_folder(config.teacher_folder)
    return shape


def _offloads(config: RunConfig) -> bool:
    return config.resources.learner_gpus > 0 and config.resources.offload


def _offloaded_frozen(shape: ModelShape, config: RunConfig) -> tuple[int, int]:
    """Returns the bytes of reference and teacher, if they are on the card only for a pass.

    With adapters the reference is the actor, which stays.
    """
    if not _offloads(config):
        return 0, 0
    reference = 0 if config.model.lora_rank else model_sizes(shape, config).frozen
    return _FLOAT32 * reference, _teacher_bytes(shape, config)


def _held_while_learning(shape: ModelShape, config: RunConfig) -> dict[str, int]:
    """Returns what a learner holds at rest, and a teacher's states of a step's tokens."""
    held = dict(resting_learner(shape, config).parts)
    if config.teacher.path is not None and config.teacher.signal == "full":
        num_rows = config.data.train_batch_size * config.algorithm.group_size
        of_token = teacher_shape(shape, config).hidden_size * compute_width(config)
        held["teacher_states"] = num_rows * config.data.max_response_length * of_token
    return held


def _layer_bytes(shape: ModelShape, tokens: int) -> int:
    """Returns a layer's widest moment: an MLP's gate, up, activation, product, or gradients."""
    return tokens * _FLOAT32 * (4 * shape.intermediate_size + 4 * shape.hidden_size)


def _teacher_layer_bytes(shape: ModelShape, config: RunConfig, tokens: int) -> int:
    teacher = teacher_shape(shape, config)
    unpacked = _unpacked_bytes(teacher, config) if config.teacher.load_in_4bit else 0
    return _layer_bytes(teacher, tokens) + unpacked


def _passing_bytes(shape: ModelShape, config: RunConfig, tokens: int) -> int:
    """Returns what a pass takes and gives back within a layer."""
    passing = _layer_bytes(shape, tokens) + _scores_bytes(shape, config, tokens)
    if config.model.lora_rank:
        # Beside a product: B A x, that scaled, the sum, and peft's float32 copy of x.
        copies = 3 if config.compute_dtype == "float32" else 4
        passing += copies * tokens * _FLOAT32 * shape.intermediate_size
    if config.model.load_in_4bit:
        passing += _unpacked_bytes(shape, config)
    return passing


def _unpacked_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of a layer's largest matrix, which a product of packed weights needs."""
    return compute_width(config) * shape.hidden_size * shape.intermediate_size


def _scores_bytes(shape: ModelShape, config: RunConfig, tokens: int) -> int:
    """Returns what a layer keeps of soft-capped scores: before and after the softmax, in float32.

    No other attention holds scores of all pairs of tokens.
    """
    longest = config.data.max_prompt_length + config.data.max_response_length
    return 2 * _FLOAT32 * tokens * longest * shape.num_heads if shape.caps_scores else 0


def _learner_phases(shape: ModelShape, config: RunConfig) -> list[PhaseMemory]:
    models = model_sizes(shape, config)
    rank = config.model.lora_rank
    resident = _held_while_learning(shape, config)
    at_hand = max(_offloaded_frozen(shape, config))  # one after the other
    on_gpu = config.resources.learner_gpus > 0
    ranks = config.resources.learner_ranks
    threads = 1 if on_gpu or ranks > 1 else config.resources.learner_threads
    tokens = micro_batch_tokens(config)
    checkpoints = config.model.gradient_checkpointing
    casts_weights = config.compute_dtype != "float32" and not _holds_bfloat16(shape, config)
    kept = shape.activation_bytes(
        tokens,
        dtype=config.compute_dtype,
        checkpointed=checkpoints,
        casts_weights=casts_weights,
    )
    kept += _packed_attention_bytes(shape, config)
    kept += (1 if checkpoints else shape.num_layers) * _scores_bytes(shape, config, tokens)
    adds = tokens < config.actor.mini_batch_size * config.algorithm.group_size * (
        config.data.max_prompt_length + config.data.max_response_length
    )
    # Copies of the weights for all micro-batches; without checkpoints, `kept` includes them.
    is_cast = adds and checkpoints and casts_weights and ranks == 1
    passing = _passing_bytes(shape, config, tokens)

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
        "weights": resident["weights"] + (at_hand if ranks == 1 else 0),
        "activations": threads * max(passing, _teacher_layer_bytes(shape, config, tokens)),
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
    prompt = config.data.max_prompt_length
    response = config.data.max_response_length
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
    of_layers = shape.num_layers * shape.num_layer_parameters
    if config.model.lora_rank:
        of_layers = shape.num_adapter_parameters(config.model.lora_rank)
    layer = of_layers // shape.num_layers
    return _FLOAT32 * (num_parameters - of_layers + (5 if learns else 3) * layer)


def _packed_attention_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes that attention keeps since each row of a group reads the shared prompt.

    Queries, keys, values and outputs of the tokens that are read again (models/packing.py), in each
    layer, or in one if layers are checkpointed. No attention here has a mask [rows, rows].
    """
    checkpointed = config.model.gradient_checkpointing
    size = config.algorithm.group_size
    on_ranks = config.resources.learner_ranks > 1
    if not (checkpointed or on_ranks or config.resources.learner_gpus > 0):
        return 0
    prompt = config.data.max_prompt_length
    response = config.data.max_response_length
    rows = micro_batch_tokens(config) * size * (prompt + response) / (prompt + size * response)
    more = math.ceil(rows) - micro_batch_tokens(config)
    num_layers = 1 if checkpointed else shape.num_layers
    return num_layers * more * shape.attention_size * compute_width(config)


def compute_width(config: RunConfig) -> int:
    """Returns the bytes of a number in the type that learner and engines compute in."""
    return _FLOAT32 if config.compute_dtype == "float32" else 2


def _engine_phase(shape: ModelShape, config: RunConfig) -> PhaseMemory:
    """Returns an engine's peak; if it is split over GPUs, the peak on each GPU."""
    width = compute_width(config)
    on_gpu = config.resources.rollout_gpus > 0
    parts_of_model = config.rollout.tensor_parallel_size if on_gpu else 1
    weights = width * shape.num_parameters // parts_of_model
    # Weights are replaced in place, but only after all new ones have arrived.
    parts = {"weights": weights, "incoming_weights": weights}
    num_seqs, num_prompts = asked_at_a_time(config)
    data = config.data
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
