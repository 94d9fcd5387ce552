"""Seconds of a training step before there is one: a roofline of generation, learning and sync.

Not measured, and not torch: shapes, settings and a device's peak rates alone. A decoding step reads
all weights and the KV cache, so memory bandwidth bounds it; prompts and the learner are bound by
arithmetic. No device reaches its peak: `Shares` says what part it does, a typical one between two
bounds, and what each decoding step, micro-batch and step cost besides.

Legend: N responses of a step, m mean and D longest response, p prompt, in tokens.

Source: Williams, Waterman, Patterson 2009, "Roofline"; operations as in `phases.training_flops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.resources.memory_plan import ModelShape

_FLOAT32 = 4
_ADAM_BYTES: Final = 7 * _FLOAT32
"""Per weight: weight, gradient and two moments are read, all but the gradient written."""
_PASSES_WITH_GRADIENT: Final = 3
"""Forward, and twice that backward."""
_HOST_LINK: Final = 3e9
"""Bytes per second of weights from learner to engine, through the machine's memory."""
_EULER: Final = 0.5772
_USUAL_RESPONSE: Final = 256
"""Tokens. First responses of a 0.5B model took 181 of 1,024 allowed on Countdown (the diary) and
239 of 512 on GSM8K (verl's quickstart)."""

_SCALED_BOUND: Final = 1.5
"""How far a step may be from what another run's step and the roofline say together."""


@dataclass(frozen=True)
class Machine:
    """What computes, at its peak: a card, or the threads that a CPU gives each process."""

    name: str
    on_gpu: bool
    learner_flops: float
    """Operations per second in the run's type, of all learner ranks."""
    engine_flops: float
    """Of one engine."""
    bandwidth: float
    """Bytes per second, of an engine."""


@dataclass(frozen=True)
class Shares:
    """What of its peak a device reaches, and the seconds that are lost between its work."""

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
    # best, typical, worst
    Shares(0.50, 0.6, 0.6, 0.8, 0.003, 0.0001, 0.3),
    Shares(0.35, 0.4, 0.4, 0.6, 0.006, 0.0002, 0.7),
    Shares(0.15, 0.2, 0.2, 0.4, 0.020, 0.0004, 2.0),
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
    """Response of a step."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by what they are spent on."""

    generate: float
    learn: float
    sync: float
    other: float
    overlaps: bool
    """The next step's responses are generated while the learner works."""

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        work = max(self.generate, self.learn) if self.overlaps else self.generate + self.learn
        return work + self.sync + self.other


def step_time_range(
    shape: ModelShape, config: RunConfig, machine: Machine, known: Lengths | None = None
) -> Spread:
    """Returns seconds per step: typical, and between which bounds it is to be expected.

    The bounds pair the best shares with short responses, the worst with responses that all fill
    `data.max_response_length`, unless their length is known.

    Args:
        shape: of the actor; the critic has the same backbone.
        config: the run's settings.
        machine: what it is planned for.
        known: lengths that runs of this model and env had; by default they are guessed.
    """
    lengths = (known,) * 3 if known is not None else guess_lengths(config)
    times = [
        step_time(shape, config, machine, *pair).total
        for pair in zip(lengths, _shares(machine), strict=True)
    ]
    return Spread(*times)


def scaled_range(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    known: Lengths | None,
    measured: tuple[RunConfig, Lengths, float],
) -> Spread:
    """Returns seconds per step from those of another run on the same device.

    The roofline tells how much more work a step is, the run what share of the peak is reached.

    Args:
        shape: of the actor, in both.
        config: the run's settings.
        machine: of both.
        known: lengths that are expected, else they are guessed.
        measured: of the other run: settings, lengths and seconds per step.
    """
    _, typical, _ = _shares(machine)
    other, seen, seconds = measured
    scale = seconds / step_time(shape, other, machine, seen, typical).total
    lengths = (known,) * 3 if known is not None else guess_lengths(config)
    factors = (1 / _SCALED_BOUND, 1.0, _SCALED_BOUND)
    return Spread(
        *(
            factor * scale * step_time(shape, config, machine, length, typical).total
            for factor, length in zip(factors, lengths, strict=True)
        )
    )


def _shares(machine: Machine) -> tuple[Shares, Shares, Shares]:
    return ON_GPU if machine.on_gpu else ON_CPU


def guess_lengths(config: RunConfig) -> tuple[Lengths, Lengths, Lengths]:
    """Returns lengths before any response is seen: short, usual, and as long as is allowed."""
    most, prompt = config.data.max_response_length, config.data.max_prompt_length / 2
    usual = min(most, _USUAL_RESPONSE)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return (
        Lengths(prompt, usual / 2, expected_longest(usual / 2, num_rows, most)),
        Lengths(prompt, usual, expected_longest(usual, num_rows, most)),
        Lengths(prompt, most, most),
    )


def expected_longest(mean: float, num_rows: int, most: int) -> float:
    """Returns the expected longest of N exponentially distributed lengths: m (ln N + 0.58).

    Args:
        mean: of the lengths, tokens.
        num_rows: N.
        most: tokens at which a response is cut.
    """
    return min(most, mean * (math.log(num_rows) + _EULER)) if num_rows > 1 else min(most, mean)


def step_time(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> StepTime:
    """Returns the seconds of one step.

    Args:
        shape: of the actor.
        config: the run's settings.
        machine: its peaks.
        lengths: of the step's prompts and responses.
        shares: what is reached of the peaks.
    """
    width = _FLOAT32 if config.model.dtype == "float32" else 2
    return StepTime(
        generate=_generate(shape, config, machine, lengths, shares),
        learn=_learn(shape, config, machine, lengths, shares),
        sync=width * shape.num_parameters * config.rollout.num_engines / _HOST_LINK,
        other=shares.step_s,
        overlaps=config.rollout.staleness > 0 and _num_devices(config) > 1,
    )


def decoding_steps(num_rows: float, lengths: Lengths, max_num_seqs: int) -> float:
    """Returns D, and m / C more for each response beyond the C that run at a time."""
    waiting = max(0.0, num_rows - max_num_seqs)
    return lengths.longest + waiting * lengths.response / max_num_seqs


def forward_flops(
    shape: ModelShape, num_rows: float, lengths: Lengths, *, num_prompts: float, has_head: bool
) -> float:
    """Returns the operations of one forward pass over a step's rows.

    Args:
        shape: of the model.
        num_rows: N.
        lengths: of the rows.
        num_prompts: how often a prompt is computed: once for all rows of a group.
        has_head: whether there is an output layer, at response tokens: an actor's, not a critic's.
    """
    num_tokens = num_rows * lengths.response + num_prompts * lengths.prompt
    weights = shape.num_layers * shape.num_layer_parameters * num_tokens
    row = lengths.prompt + lengths.response
    attention = shape.num_layers * shape.num_heads * shape.head_size * num_rows * row**2
    head = shape.vocab_size * shape.hidden_size * num_rows * lengths.response if has_head else 0.0
    return 2 * (weights + attention + head)


def _generate(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> float:
    width = _FLOAT32 if config.model.dtype == "float32" else 2
    num_devices = _engine_devices(config) if machine.on_gpu else config.rollout.num_engines
    num_prompts = config.data.train_batch_size / num_devices
    num_rows = num_prompts * config.algorithm.group_size
    num_steps = decoding_steps(num_rows, lengths, config.rollout.max_num_seqs)
    # A key and value of each token before it, for each token of each response.
    tokens_read = num_rows * lengths.response * (lengths.prompt + lengths.response / 2)
    weights = num_steps * width * shape.num_parameters
    read_s = (weights + shape.kv_bytes(width) * tokens_read) / (
        machine.bandwidth * shares.bandwidth
    )
    per_token = shape.num_layers * shape.num_layer_parameters + shape.vocab_size * shape.hidden_size
    flops = 2 * per_token * num_rows * lengths.response
    compute_s = flops / (machine.engine_flops * shares.decode_flops)
    prompts = Lengths(lengths.prompt, 0.0, 0.0)
    prefill = forward_flops(shape, num_prompts, prompts, num_prompts=num_prompts, has_head=False)
    prefill_s = prefill / (machine.engine_flops * shares.prefill)
    parts = config.rollout.tensor_parallel_size if machine.on_gpu else 1
    return (prefill_s + max(read_s, compute_s)) / parts + num_steps * shares.decode_step_s


def _learn(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> float:
    data, actor = config.data, config.actor
    num_rows = data.train_batch_size * config.algorithm.group_size
    forward = {
        has_head: forward_flops(
            shape, num_rows, lengths, num_prompts=data.train_batch_size, has_head=has_head
        )
        for has_head in (True, False)
    }
    actor_passes, critic_passes = _passes(config)
    flops = actor_passes * forward[True] + critic_passes * forward[False]
    num_micro = math.ceil(
        num_rows * (lengths.prompt + lengths.response) / max(actor.micro_batch_tokens, 1)
    )
    launches_s = (actor_passes + critic_passes) * num_micro * shape.num_layers * shares.layer_s
    num_updates = actor.ppo_epochs * (data.train_batch_size // actor.mini_batch_size)
    learning = _num_learning(shape, config)
    # Moments that wait in the machine's memory come and go once per step.
    moved = 4 * _FLOAT32 * learning if machine.on_gpu and config.resources.offload else 0
    adam_s = num_updates * _ADAM_BYTES * learning / (machine.bandwidth * shares.bandwidth)
    compute_s = flops / (machine.learner_flops * shares.learner)
    # What ranks send each other is not counted: it depends on a link that nobody has named.
    divided_s = (launches_s + adam_s) / config.resources.learner_ranks
    return compute_s + divided_s + moved / _HOST_LINK


def _passes(config: RunConfig) -> tuple[float, float]:
    """Returns what a step computes, in forward passes of the actor and of a critic's backbone."""
    algorithm, model, epochs = config.algorithm, config.model, config.actor.ppo_epochs
    again = 1 if model.gradient_checkpointing else 0
    # The gradient of frozen weights is not computed: adapters save a third of it.
    update = epochs * (_PASSES_WITH_GRADIENT + again - (1 if model.lora_rank else 0))
    has_reference = algorithm.kl_mode != "none" and algorithm.kl_coef > 0
    actor = update + (0 if config.has_one_update else 1) + (1 if has_reference else 0)
    has_critic = algorithm.estimator == "gae" and not config.critic.share_trunk
    return actor, (update + 1 if has_critic else 0)


def _num_learning(shape: ModelShape, config: RunConfig) -> int:
    rank = config.model.lora_rank
    actor = shape.num_adapter_parameters(rank) if rank else shape.num_parameters
    if config.algorithm.estimator != "gae" or config.critic.share_trunk:
        return actor
    return actor + (actor if rank else shape.num_backbone_parameters)


def _engine_devices(config: RunConfig) -> int:
    """Returns on how many cards the engines lie: several on one card share its bandwidth."""
    cards = config.rollout.num_engines * config.resources.rollout_gpus  # of one part each
    return max(1, min(config.rollout.num_engines, math.floor(cards)))


def _num_devices(config: RunConfig) -> float:
    resources = config.resources
    if resources.learner_gpus == 0:
        # Processes, each with threads of its own.
        return resources.learner_ranks + config.rollout.num_engines
    engine_gpus = config.rollout.tensor_parallel_size * resources.rollout_gpus
    learner_gpus = resources.learner_ranks * resources.learner_gpus
    return learner_gpus + config.rollout.num_engines * engine_gpus
