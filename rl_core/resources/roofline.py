"""A step's time, estimated before the first step: a roofline of generation, learning and sync.

Nothing is measured, and torch is not imported: it takes shapes, settings and a device's peak rates.
A decoding step reads all weights and the KV cache, so memory bandwidth bounds it; arithmetic bounds
prompts and the learner. No device reaches its peak: `Shares` has the share it reaches (typical,
between two bounds) and the seconds that each decoding step, layer and step adds.

Legend: N responses of a step, m mean and D longest response, p prompt, in tokens.

Source: Williams, Waterman, Patterson 2009, "Roofline"; operations as in `phases.training_flops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.resources.memory_plan import ModelShape, compute_width, model_sizes, moment_bytes

_ADAM_BYTES: Final = 7 * 4
"""Per weight: weight, gradient and two moments are read, all but the gradient written."""
_PASSES_WITH_GRADIENT: Final = 3
"""Forward, and twice that backward."""
_HOST_LINK: Final = 3e9
"""Bytes per second of weights from learner to engine, through the machine's memory."""
_EULER: Final = 0.5772
_USUAL_RESPONSE: Final = 256
"""Tokens. First responses of a 0.5B model took 181 of 1,024 allowed on Countdown (the diary) and
239 of 512 on GSM8K (verl's quickstart)."""
_SEARCH_SHARE: Final = 1 / 3
"""Of the longest allowed response, for models that were shown our searches. Quickstart's took 27 of
128 tokens at first and 43 at the end, SmolLM2's 59 of 160 (benchmarks/README.md)."""


@dataclass(frozen=True)
class Machine:
    """A device and its peak rates: a card, or the CPU threads of each process."""

    name: str
    on_gpu: bool
    learner_flops: float
    """Operations per second in the run's type, of all learner ranks."""
    engine_flops: float
    """Of one engine."""
    bandwidth: float
    """Bytes per second, of an engine."""

    @property
    def shares(self) -> tuple[Shares, Shares, Shares]:
        """The shares of its peak that it reaches: best, typical and worst."""
        return ON_GPU if self.on_gpu else ON_CPU


@dataclass(frozen=True)
class Shares:
    """The part of its peak that a device reaches, and the seconds that are lost in between."""

    learner: float
    prefill: float
    decode_flops: float
    bandwidth: float
    decode_step_s: float
    """Scheduling, launches and sampling of one decoding step."""
    layer_s: float
    """Launches of one layer's forward pass over a micro-batch."""
    step_s: float
    """Rewards, logs and messages of a training step."""


ON_GPU: Final = (
    Shares(0.50, 0.6, 0.6, 0.8, 0.003, 0.0002, 0.3),
    Shares(0.35, 0.4, 0.4, 0.6, 0.006, 0.0008, 0.7),
    Shares(0.15, 0.2, 0.2, 0.4, 0.020, 0.0020, 2.0),
)
ON_CPU: Final = (
    Shares(1.00, 1.0, 1.0, 0.8, 0.004, 0.0001, 0.1),
    Shares(0.50, 0.5, 0.5, 0.5, 0.010, 0.0002, 0.3),
    Shares(0.20, 0.2, 0.2, 0.2, 0.040, 0.0008, 1.0),
)


@dataclass(frozen=True)
class Lengths:
    """Of prompts and responses, in tokens."""

    prompt: float
    response: float
    """The mean."""
    longest: float
    """The longest response of a step."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by their use."""

    generate: float
    learn: float
    sync: float
    other: float
    is_ahead: bool
    """The next step's responses are generated while the learner works."""

    @property
    def total(self) -> float:
        """Seconds until the next step."""
        work = max(self.generate, self.learn) if self.is_ahead else self.generate + self.learn
        return work + self.sync + self.other


def step_time_range(
    shape: ModelShape, config: RunConfig, machine: Machine, known: Lengths | None = None
) -> Spread:
    """Returns seconds per step.

    The bounds pair the best shares with short responses, and the worst with responses that all fill
    `data.max_response_length`, unless lengths are `known`.
    """
    lengths = (known,) * 3 if known is not None else guess_lengths(config)
    pairs = zip(lengths, machine.shares, strict=True)
    return Spread(*(step_time(shape, config, machine, *pair).total for pair in pairs))


def sft_step_range(shape: ModelShape, config: RunConfig, machine: Machine) -> Spread:
    """Returns seconds per step of SFT (`sft.data` is set), without measuring its loss."""
    training = _sft_as_training(config)
    pairs = zip(guess_lengths(training), machine.shares, strict=True)
    return Spread(*(_learn(shape, training, machine, *pair) for pair in pairs))


def _sft_as_training(config: RunConfig) -> RunConfig:
    """Returns settings under which the policy's update is a step of SFT. Not validated.

    SFT has one process and no critic, whatever training has afterwards.
    """
    sft = config.sft
    data = {"train_batch_size": sft.batch_size}
    # Traces are at most as long as training allows; rows of a file as long as SFT does.
    if sft.data != "traces":
        data |= {"max_prompt_length": sft.max_length // 2}
        data |= {"max_response_length": sft.max_length - sft.max_length // 2}
    changes: dict[str, dict[str, Any]] = {
        "model": {} if sft.lora_rank is None else {"lora_rank": sft.lora_rank},
        "data": data,
        "algorithm": {"estimator": "grpo", "group_size": 1, "kl_mode": "none"},
        "actor": {"mini_batch_size": sft.batch_size, "ppo_epochs": 1},
        "resources": {"learner_ranks": 1, "offload": False},
    }
    return config.model_copy(
        update={x: getattr(config, x).model_copy(update=changes[x]) for x in changes}
    )


def guess_lengths(config: RunConfig) -> tuple[Lengths, Lengths, Lengths]:
    """Returns lengths guessed before the first response: short, usual, and as long as allowed."""
    most, prompt = config.data.max_response_length, config.data.max_prompt_length / 2
    searches = config.model.path is None or config.sft.data == "traces"
    usual = most * _SEARCH_SHARE if searches else min(most, _USUAL_RESPONSE)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return (
        Lengths(prompt, usual / 2, expected_longest(usual / 2, num_rows, most)),
        Lengths(prompt, usual, expected_longest(usual, num_rows, most)),
        Lengths(prompt, most, most),
    )


def expected_longest(mean: float, num_rows: int, most: int) -> float:
    """Returns the expected longest of N exponential lengths, at most `most`: m (ln N + 0.58)."""
    return min(most, mean * (math.log(num_rows) + _EULER)) if num_rows > 1 else min(most, mean)


def step_time(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths,
    shares: Shares,
) -> StepTime:
    """Returns the seconds of one step; the critic has the actor's backbone."""
    resources, rollout = config.resources, config.rollout
    num_cards = resources.learner_ranks * resources.learner_gpus
    num_cards += rollout.num_engines * rollout.tensor_parallel_size * resources.rollout_gpus
    # On a CPU each process has threads of its own.
    takes_turns = resources.learner_gpus > 0 and num_cards <= 1
    is_ahead = rollout.staleness > 0 and not takes_turns
    generate = _generate(shape, config, machine, lengths, shares)
    learn = _learn(shape, config, machine, lengths, shares)
    sent = compute_width(config) * shape.num_parameters * config.rollout.num_engines
    return StepTime(generate, learn, sent / _HOST_LINK, shares.step_s, is_ahead)


def decoding_steps(num_rows: float, lengths: Lengths, max_num_seqs: int) -> float:
    """Returns D, plus m / C for each response beyond the C = `max_num_seqs` at a time."""
    waiting = max(0.0, num_rows - max_num_seqs)
    return lengths.longest + waiting * lengths.response / max_num_seqs


def forward_flops(
    shape: ModelShape, num_rows: float, lengths: Lengths, *, num_prompts: float, has_head: bool
) -> float:
    """Returns the operations of one forward pass over N rows.

    A prompt is computed once for all rows of a group. The output layer (an actor's, not a critic's)
    computes only response tokens.
    """
    num_tokens = num_rows * lengths.response + num_prompts * lengths.prompt
    weights = shape.num_layers * shape.num_layer_parameters * num_tokens
    row = lengths.prompt + lengths.response
    attention = shape.num_layers * shape.num_heads * shape.head_size * num_rows * row**2
    head = shape.vocab_size * shape.hidden_size * num_rows * lengths.response if has_head else 0.0
    return 2 * (weights + attention + head)


def fullest_rank(config: RunConfig, lengths: Lengths) -> float:
    """Returns the work of the fullest rank in an update, as a multiple of the mean.

    Groups stay whole: a rank has at least one, which may be the longest. If it has more, long
    groups are paired with short ones. Lengths are exponentially distributed, cut at the longest.
    """
    ranks, num_groups = config.resources.learner_ranks, config.actor.mini_batch_size
    if ranks == 1:
        return 1.0
    size = config.algorithm.group_size
    mean = lengths.prompt + size * lengths.response
    # A group of n responses has sqrt(n) times the standard deviation of one, which is the mean.
    spread = math.sqrt(size) * lengths.response * math.sqrt(2 * math.log(num_groups))
    longest = min(mean + spread, lengths.prompt + size * lengths.longest)
    per_rank = num_groups / ranks
    return max(math.ceil(per_rank) / per_rank, longest / (per_rank * mean))


def _generate(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths,
    shares: Shares,
) -> float:
    """Returns the seconds of a step's responses."""
    width, rollout = compute_width(config), config.rollout
    num_engines = rollout.num_engines
    if machine.on_gpu:  # engines that are not split: several on one card share its bandwidth
        num_cards = math.floor(num_engines * config.resources.rollout_gpus)
        num_engines = max(1, min(num_engines, num_cards))
    num_prompts = config.data.train_batch_size / num_engines
    num_rows = num_prompts * config.algorithm.group_size
    # Of more engines than rows, each has one row or none: those with one decide.
    decodes = decoding_steps(max(num_rows, 1.0), lengths, rollout.max_num_seqs)
    # Each token of each response reads the keys and values of all tokens before it.
    tokens_read = num_rows * lengths.response * (lengths.prompt + lengths.response / 2)
    bandwidth = machine.bandwidth * shares.bandwidth
    weights_s = decodes * width * shape.num_parameters / bandwidth
    cache_s = shape.kv_bytes(width) * tokens_read / bandwidth
    per_token = shape.num_layers * shape.num_layer_parameters + shape.vocab_size * shape.hidden_size
    flops = 2 * per_token * num_rows * lengths.response
    compute_s = flops / (machine.engine_flops * shares.decode_flops)
    # A group's prompt is read once.
    read = Lengths(lengths.prompt, 0, 0)
    prefill = forward_flops(shape, num_prompts, read, num_prompts=num_prompts, has_head=False)
    prefill_s = prefill / (machine.engine_flops * shares.prefill)
    parts = rollout.tensor_parallel_size if machine.on_gpu else 1
    whole = (prefill_s + max(weights_s + cache_s, compute_s)) / parts
    return whole + decodes * shares.decode_step_s


def _learn(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> float:
    """Returns the seconds of a step's passes and updates."""
    data, actor, ranks = config.data, config.actor, config.resources.learner_ranks
    num_rows = data.train_batch_size * config.algorithm.group_size
    of_actor, of_critic = (
        forward_flops(shape, num_rows, lengths, num_prompts=data.train_batch_size, has_head=x)
        for x in (True, False)
    )
    actor_passes, critic_passes = _passes(config)
    sizes = model_sizes(shape, config)
    taught = sizes.teacher / shape.num_parameters  # one pass of a teacher, in passes of the actor
    flops = (actor_passes + taught) * of_actor + critic_passes * of_critic
    num_updates = actor.ppo_epochs * (data.train_batch_size // actor.mini_batch_size)
    num_tokens = num_rows * (lengths.prompt + lengths.response)
    num_micro = math.ceil(num_tokens / max(actor.micro_batch_tokens, 1))
    # A rank has at least one pass in each update, however small.
    num_micro_of_rank = max(num_micro / ranks, num_updates)
    launches_s = (actor_passes + taught + critic_passes) * num_micro_of_rank * shape.num_layers
    learning = sizes.actor + sizes.critic
    # Offloaded moments go to the card and back in each update.
    offloads = machine.on_gpu and config.resources.offload
    share = math.ceil(learning / ranks)
    moved = 2 * num_updates * moment_bytes(share, config) if offloads else 0
    adam_s = num_updates * _ADAM_BYTES * learning / (machine.bandwidth * shares.bandwidth)
    compute_s = flops / (machine.learner_flops * shares.learner) * fullest_rank(config, lengths)
    return compute_s + launches_s * shares.layer_s + adam_s / ranks + moved / _HOST_LINK


def _passes(config: RunConfig) -> tuple[float, float]:
    """Returns a step's work, in forward passes of the actor and of a critic's backbone."""
    algorithm, model, epochs = config.algorithm, config.model, config.actor.ppo_epochs
    again = 1 if model.gradient_checkpointing else 0
    # The gradient of frozen weights is not computed: adapters save one of three passes.
    update = epochs * (_PASSES_WITH_GRADIENT + again - (1 if model.lora_rank else 0))
    actor = update + (0 if config.has_one_update else 1) + (1 if algorithm.has_reference else 0)
    values = 0 if config.has_one_critic_update else 1
    return actor, (update + values if algorithm.formula.needs_critic else 0)
