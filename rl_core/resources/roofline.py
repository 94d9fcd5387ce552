"""Seconds of a training step before there is one: a roofline of generation, learning and sync.

Not measured, and not torch: shapes, settings and a device's peak rates alone. A decoding step reads
all weights and the KV cache, so memory bandwidth bounds it; prompts and the learner are bound by
arithmetic. No device reaches its peak: `Shares` says what part it does, a typical one between two
bounds, and what each decoding step, micro-batch and step cost besides.

Legend: N responses of a step, m mean and D longest response, p prompt, in tokens; K steps ahead.

Source: Williams, Waterman, Patterson 2009, "Roofline"; operations as in `phases.training_flops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.collectives import Links
from rl_core.resources.memory_plan import ModelShape, compute_width, model_sizes, moment_bytes
from rl_core.resources.rank_traffic import rank_traffic

_FLOAT32 = 4
_ADAM_BYTES: Final = 7 * _FLOAT32
"""Per weight: weight, gradient and two moments are read, all but the gradient written."""
_PASSES_WITH_GRADIENT: Final = 3
"""Forward, and twice that backward."""
_HOST_LINK: Final = 3e9
"""Bytes per second of weights from learner to engine, through the machine's memory."""
_EULER: Final = 0.5772
_CACHE_BLOCK: Final = {True: 16, False: 128}
"""Tokens of a block of vLLM's prefix cache, on a card and on a CPU: a part of one is read anew."""


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
    links: Links | None = None
    """Between the cards; None where nobody has named them: what they send is not counted."""


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
    turns: float = 1.0
    """Times that the model writes in a response (`env.max_turns`), the mean."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by what they are spent on."""

    tokens: float
    """Generation's work by tokens, which more engines divide."""
    decoding: float
    """And by decoding steps, of which the longest response takes its length on any engine."""
    passes: float
    """The learner's arithmetic, which more ranks divide."""
    uneven: float
    """Ranks with less to do wait for the others."""
    launches: float
    """Launches, and AdamW."""
    gather: float
    """What ranks send each other."""
    sync: float
    """New weights to the engines."""
    other: float
    ahead: int
    """K: the responses of so many further steps are generated while the learner works."""

    @property
    def generate(self) -> float:
        """All responses."""
        return self.tokens + self.decoding

    @property
    def learn(self) -> float:
        """The learner's step, but for what ranks send."""
        return self.passes + self.uneven + self.launches

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        learn = self.learn + self.gather
        work = max(self.generate, learn) if self.ahead else self.generate + learn
        return work + self.sync + self.other


def expected_longest(mean: float, num_rows: int, most: int) -> float:
    """Returns the expected longest of N exponentially distributed lengths: m (ln N + 0.58).

    Args:
        mean: of the lengths, tokens.
        num_rows: N.
        most: tokens at which a response is cut.
    """
    return min(most, mean * (math.log(num_rows) + _EULER)) if num_rows > 1 else min(most, mean)


def _longest_of_turns(lengths: Lengths, num_rows: float) -> float:
    """Returns the decoding steps of a step's responses, of which each turn waits for its longest.

    The longest of exponential turns add up to m (ln N + 0.58), however many they are, where the
    whole responses are more alike; but no turn is longer than the longest response.
    """
    most = lengths.turns * lengths.longest
    return max(lengths.longest, expected_longest(lengths.response, math.ceil(num_rows), int(most)))


def step_time(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths,
    shares: Shares,
    *,
    in_turns: bool = False,
) -> StepTime:
    """Returns the seconds of one step.

    Args:
        shape: of the actor.
        config: the run's settings.
        machine: its peaks.
        lengths: of the step's prompts and responses.
        shares: what is reached of the peaks.
        in_turns: learner and engines have the same devices, as one device always has them.
    """
    ahead = 0 if in_turns or _num_devices(config) <= 1 else steps_ahead(config)
    tokens, decoding = _generate(shape, config, machine, lengths, shares, max(ahead, 1))
    passes, uneven, launches = _learn(shape, config, machine, lengths, shares)
    ranks, gather = config.resources.learner_ranks, 0.0
    if machine.links is not None and ranks > 1:
        gather = rank_traffic(shape, config, lengths.longest).seconds(machine.links, ranks)
    return StepTime(
        tokens=tokens,
        decoding=decoding,
        passes=passes,
        uneven=uneven,
        launches=launches,
        gather=gather,
        sync=_sync(shape, config, machine),
        other=shares.step_s,
        ahead=ahead,
    )


ONE_STEP_AHEAD: Final = "rollout.staleness=1"
"""The setting, as one types it."""


def steps_ahead(config: RunConfig) -> int:
    """Returns K, by how many steps generation may be ahead of the learner."""
    return config.rollout.staleness


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


def _prefill(
    shape: ModelShape, config: RunConfig, lengths: Lengths, *, num_prompts: float, on_gpu: bool
) -> float:
    """Returns the operations of reading prompts: a group's once, and what a further turn reads.

    That is all that was said where an engine forgets it, and what fills no block of vLLM's cache.
    """
    prompts = Lengths(lengths.prompt, 0.0, 0.0)
    flops = forward_flops(shape, num_prompts, prompts, num_prompts=num_prompts, has_head=False)
    num_more = num_prompts * config.algorithm.group_size * (lengths.turns - 1)
    if not num_more:
        return flops
    said = lengths.prompt + lengths.response / 2
    if config.rollout.engine == "vllm":
        said = min(said, _CACHE_BLOCK[on_gpu] / 2)
    again = Lengths(said, 0.0, 0.0)
    return flops + forward_flops(shape, num_more, again, num_prompts=num_more, has_head=False)


def _generate(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    lengths: Lengths,
    shares: Shares,
    num_steps: int,
) -> tuple[float, float]:
    """Returns the seconds of tokens and of decoding steps, with so many steps' rows under way.

    Several steps' responses wait for their longest at the same time.
    """
    width = compute_width(config)
    num_devices = _engine_devices(config) if machine.on_gpu else config.rollout.num_engines
    num_prompts = config.data.train_batch_size / num_devices
    num_rows = num_prompts * config.algorithm.group_size
    # Many engines have one row each, or none: those that have one decide.
    rows_at_once = max(num_steps * num_rows, 1.0)
    if lengths.turns > 1:
        lengths = replace(lengths, longest=_longest_of_turns(lengths, num_rows))
    decodes = decoding_steps(rows_at_once, lengths, config.rollout.max_num_seqs) / num_steps
    # A key and value of each token before it, for each token of each response.
    tokens_read = num_rows * lengths.response * (lengths.prompt + lengths.response / 2)
    bandwidth = machine.bandwidth * shares.bandwidth
    weights_s = decodes * width * shape.num_parameters / bandwidth
    cache_s = shape.kv_bytes(width) * tokens_read / bandwidth
    per_token = shape.num_layers * shape.num_layer_parameters + shape.vocab_size * shape.hidden_size
    flops = 2 * per_token * num_rows * lengths.response
    compute_s = flops / (machine.engine_flops * shares.decode_flops)
    prefill = _prefill(shape, config, lengths, num_prompts=num_prompts, on_gpu=machine.on_gpu)
    prefill_s = prefill / (machine.engine_flops * shares.prefill)
    parts = config.rollout.tensor_parallel_size if machine.on_gpu else 1
    tokens = (prefill_s + max(cache_s, compute_s)) / parts
    whole = (prefill_s + max(weights_s + cache_s, compute_s)) / parts
    per_step = shares.decode_step_s
    if machine.links is not None:
        # The parts of an engine add up twice per layer what each has computed of the hidden states.
        hidden = width * shape.hidden_size * num_rows * lengths.response / decodes
        per_step += 2 * shape.num_layers * machine.links.all_reduce(hidden, parts)
    return tokens, whole - tokens + decodes * per_step


def _sync(shape: ModelShape, config: RunConfig, machine: Machine) -> float:
    """Returns the seconds of new weights: through the machine's memory, else one broadcast."""
    width = compute_width(config)
    num_bytes, num_engines = width * shape.num_parameters, config.rollout.num_engines
    if machine.links is None:
        return num_bytes * num_engines / _HOST_LINK
    engine_cards = num_engines * config.rollout.tensor_parallel_size
    return machine.links.broadcast(num_bytes, config.resources.learner_ranks + engine_cards)


def learner_seconds(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> float:
    """Returns the seconds of a step's updates alone; arguments as of `step_time`."""
    return sum(_learn(shape, config, machine, lengths, shares))


def _learn(
    shape: ModelShape, config: RunConfig, machine: Machine, lengths: Lengths, shares: Shares
) -> tuple[float, float, float]:
    """Returns the seconds of arithmetic, of waiting for the fullest rank, and of the rest."""
    data, actor, ranks = config.data, config.actor, config.resources.learner_ranks
    num_rows = data.train_batch_size * config.algorithm.group_size
    forward = {
        has_head: forward_flops(
            shape, num_rows, lengths, num_prompts=data.train_batch_size, has_head=has_head
        )
        for has_head in (True, False)
    }
    actor_passes, critic_passes = _passes(config)
    flops = actor_passes * forward[True] + critic_passes * forward[False]
    num_updates = actor.ppo_epochs * (data.train_batch_size // actor.mini_batch_size)
    num_micro = math.ceil(
        num_rows * (lengths.prompt + lengths.response) / max(actor.micro_batch_tokens, 1)
    )
    # A rank has one pass in each update, however little there is in it.
    num_micro_of_rank = max(num_micro / ranks, num_updates)
    launches_s = (actor_passes + critic_passes) * num_micro_of_rank * shape.num_layers
    sizes = model_sizes(shape, config)
    learning = sizes.actor + sizes.critic
    # Moments that wait in the machine's memory come and go with each update.
    offloads = machine.on_gpu and config.resources.offload
    share = math.ceil(learning / ranks)
    moved = 2 * num_updates * moment_bytes(share, config) if offloads else 0
    adam_s = num_updates * _ADAM_BYTES * learning / (machine.bandwidth * shares.bandwidth)
    compute_s = flops / (machine.learner_flops * shares.learner)
    uneven_s = compute_s * (fullest_rank(config, lengths) - 1)
    rest_s = launches_s * shares.layer_s + adam_s / ranks + moved / _HOST_LINK
    return compute_s, uneven_s, rest_s


def fullest_rank(config: RunConfig, lengths: Lengths) -> float:
    """Returns the work of the fullest rank in an update, in parts of the mean.

    Groups stay whole: a rank has at least one, and it may be the longest. Of more, those that are
    long are dealt out beside short ones.

    Args:
        config: the run's settings.
        lengths: of the step; responses are distributed exponentially, cut at the longest.
    """
    ranks, num_groups = config.resources.learner_ranks, config.actor.mini_batch_size
    if ranks == 1:
        return 1.0
    size = config.algorithm.group_size
    mean = lengths.prompt + size * lengths.response
    # Of groups of n responses the standard deviation is sqrt(n) that of one, which is its mean.
    spread = math.sqrt(size) * lengths.response * math.sqrt(2 * math.log(num_groups))
    longest = min(mean + spread, lengths.prompt + size * lengths.longest)
    per_rank = num_groups / ranks
    return max(math.ceil(per_rank) / per_rank, longest / (per_rank * mean))


def _passes(config: RunConfig) -> tuple[float, float]:
    """Returns what a step computes, in forward passes of the actor and of a critic's backbone."""
    algorithm, model, epochs = config.algorithm, config.model, config.actor.ppo_epochs
    again = 1 if model.gradient_checkpointing else 0
    # The gradient of frozen weights is not computed: adapters save a third of it.
    update = epochs * (_PASSES_WITH_GRADIENT + again - (1 if model.lora_rank else 0))
    actor = update + (0 if config.has_one_update else 1) + (1 if algorithm.has_reference else 0)
    has_critic = algorithm.estimator == "gae" and not config.critic.share_trunk
    values = 0 if config.has_one_critic_update else 1
    return actor, (update + values if has_critic else 0)


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
