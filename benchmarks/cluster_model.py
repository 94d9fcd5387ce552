"""What a run would gain from more machines: a step simulated on 1, 2, 4, ... 64 nodes, not run.

.venv/bin/python benchmarks/cluster_model.py [SETTINGS ...]

Prints the table of docs/cluster.md: a step's time by the product's roofline, traffic of cards by
rings, memory by the plan; for the fastest split into learner ranks and engines that fits.

Legend: R cards, W bytes of a whole tensor.
Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", sections 4.1 to 4.4 (rings); what NCCL does for large tensors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.resources import memory_need, roofline
from rl_core.resources.levers import Value, with_unchecked
from rl_core.resources.memory_plan import ModelShape, compute_width, memory_plan, model_sizes
from rl_core.resources.memory_plan import resting_learner as at_rest
from rl_core.resources.roofline import Lengths, Machine, decoding_steps, step_time
from rl_core.system.devices import CardFigures, named_card
from tasks.preflight_checks.plans import model_shape

PRESET: Final = ("preset=tinyzero-3b", "rollout.staleness=1")
NODES: Final = (1, 2, 4, 8, 16, 32, 64)
_GIB: Final = 2**30
_FLOAT32: Final = 4
_WEIGHTS_PER_LAYER: Final = 12
"""Tensors: four projections, three biases, an MLP's three and two norms."""
_REACHED: Final = 0.8
"""Share of a link's peak: NCCL's all-gather on eight H100 reports some 360 of 450 GB/s."""
_HOP_WITHIN_S, _HOP_BETWEEN_S = 2e-6, 1e-5
"""Seconds from one card to the next in a ring, even for the smallest message."""
_HOST_LINK: Final = 3e9
"""Bytes per second from card to card through the machine's memory, where Ray's object store is."""
_MOST_OF_A_CARD: Final = 0.9


@dataclass(frozen=True)
class Cluster:
    """The cards, and the peak rates of the links between them."""

    card: CardFigures
    per_node: int
    network: float
    """Bytes per second between machines, of each card."""

    def all_gather(self, num_bytes: float, num_cards: int) -> float:
        """Returns the seconds until each of R cards has W bytes: (R - 1) / R x W, in rings."""
        num_nodes = math.ceil(num_cards / self.per_node)
        speed = 1e9 * self.card.link_gb_s
        hops_s = (num_cards - num_nodes) * _HOP_WITHIN_S
        if num_nodes > 1:  # a ring enters each machine once, over all its network
            speed = min(speed, self.network * self.per_node)
            hops_s += num_nodes * _HOP_BETWEEN_S
        return (num_cards - 1) / num_cards * num_bytes / (_REACHED * speed) + hops_s

    def new_weights(self, num_bytes: float, num_nodes: int) -> float:
        """Returns the seconds from learner to engines by object stores, one copy per machine."""
        rounds = math.ceil(math.log2(num_nodes)) if num_nodes > 1 else 0
        between = rounds * num_bytes / (_REACHED * self.network * self.per_node)
        return num_bytes / _HOST_LINK + between


H100S: Final = Cluster(named_card("H100"), 8, 50e9)
"""Eight cards per machine, 400 Gbit/s per card between machines."""


class Traffic(NamedTuple):
    """A step's collectives among ranks, in float32: bytes of whole tensors, and how many."""

    gathered: tuple[int, int]
    """Weights for passes; of each, a rank receives the parts of the others."""
    scattered: tuple[int, int]
    """Gradients that are added up, of which each rank keeps its share."""
    summed: tuple[int, int]
    """Results per token, of which each rank has computed its rows."""
    handed: tuple[int, int]
    """Weights gathered for the engines, tensor by tensor."""

    def bytes_sent(self, num_ranks: int) -> float:
        """Returns what a rank sends in a step, by rings; it receives as much."""
        once = self.gathered[0] + self.scattered[0] + self.handed[0]
        return (num_ranks - 1) / num_ranks * (once + 2 * self.summed[0])

    def seconds(self, cluster: Cluster, num_ranks: int) -> float:
        """Returns how long a step waits for all collectives; a sum takes two rings."""
        times = zip(self, (1, 1, 2, 1), strict=True)
        return sum(
            rings * number * cluster.all_gather(num_bytes / number, num_ranks)
            for (num_bytes, number), rings in times
            if number and num_ranks > 1
        )


def rank_traffic(
    shape: ModelShape, config: RunConfig, longest: float, fills: float = 1.0
) -> Traffic:
    """Returns what several ranks send each other in a step whose longest response is given.

    Args:
        shape: the actor's.
        config: the run's settings.
        longest: tokens.
        fills: how many micro-batches a rank's part of the step's batch would fill.
    """
    sizes, data = model_sizes(shape, config), config.data
    rank, has_critic = config.model.lora_rank, sizes.critic > 0
    passes: list[int] = []  # numbers of parameters that are gathered
    num_outputs = 1 + config.algorithm.has_reference
    if not config.has_one_update:
        passes.append(sizes.actor)
    if sizes.frozen and not rank:  # with adapters it is the actor without them, and not sharded
        passes.append(sizes.frozen)
    if has_critic and not config.has_one_critic_update:
        passes.append(sizes.critic)
    num_outputs += has_critic
    num_minis = data.train_batch_size // config.actor.mini_batch_size
    num_updates = config.actor.ppo_epochs * num_minis
    num_passes, num_micro = math.ceil(fills), math.ceil(fills / num_minis)
    updated = num_updates * num_micro * (sizes.actor + sizes.critic)
    num_models = num_updates * num_micro * (1 + has_critic)
    # Backward passes gather the layers again; weights outside of the layers are kept.
    layers = num_models * (
        shape.num_adapter_parameters(rank)
        if rank
        else shape.num_layers * shape.num_layer_parameters
    )
    num_rows = data.train_batch_size * config.algorithm.group_size
    # An adapter's addition to a weight is as large as the weight.
    handed = shape.num_layers * shape.num_layer_parameters if rank else sizes.actor
    units, weights = shape.num_layers + 1, _WEIGHTS_PER_LAYER * shape.num_layers + 2
    return Traffic(
        gathered=(
            _FLOAT32 * (num_passes * sum(passes) + updated + layers),
            units * num_passes * len(passes) + (2 * units - 1) * num_models,
        ),
        scattered=(_FLOAT32 * updated, units * num_models),
        summed=(int(num_outputs * _FLOAT32 * num_rows * longest), num_outputs),
        handed=(_FLOAT32 * handed, weights),
    )


@dataclass(frozen=True)
class Split:
    """How many cards learn, and how many generate; `in_turns`: both numbers count all cards."""

    num_learn: int
    num_generate: int
    parts: int
    """Cards of an engine (`rollout.tensor_parallel_size`)."""
    in_turns: bool = False


@dataclass(frozen=True)
class Scaled:
    """A step on one split of the cards."""

    split: Split
    seconds: float
    tokens_per_s: float
    fits: bool


def simulate(
    shape: ModelShape, config: RunConfig, cluster: Cluster, lengths: Lengths, split: Split
) -> Scaled:
    """Returns a step on a split of the cards."""
    card, parts = cluster.card, split.parts
    of_a_card = 0.5 if split.in_turns else 1.0
    settings: dict[str, Value] = {
        "resources.learner_ranks": split.num_learn,
        "resources.learner_gpus": of_a_card,
        "resources.rollout_gpus": of_a_card,
        "rollout.num_engines": split.num_generate // parts,
        "rollout.tensor_parallel_size": parts,
        "rollout.sleep": split.in_turns,
        "rollout.staleness": 0 if split.in_turns else config.rollout.staleness,
    }
    planned = with_unchecked(config, settings)
    weights = compute_width(config) * shape.num_parameters
    free = card.memory_gib - weights / _GIB / parts - memory_need.CUDA_GIB
    if split.in_turns:
        free -= at_rest(shape, planned).total_bytes / _GIB + memory_need.CUDA_GIB
    share = min(_MOST_OF_A_CARD, max(math.floor(100 * free / card.memory_gib), 1) / 100)
    planned = with_unchecked(planned, {"rollout.gpu_memory_utilization": share})
    cache = parts * _GIB * (share * card.memory_gib - memory_need.ENGINE_ITSELF_GIB) - weights
    per_response = shape.kv_bytes(compute_width(config)) * (lengths.prompt + lengths.response)
    at_once = max(1, min(config.rollout.max_num_seqs, int(cache / per_response)))
    whole = {"resources.learner_gpus": 1.0, "resources.rollout_gpus": 1.0}
    alone = with_unchecked(planned, {"rollout.max_num_seqs": at_once, **whole})
    flops = card.flops(config.compute_dtype)
    learners = split.num_learn * flops / fullest_rank(config, lengths, split.num_learn)
    machine = Machine(card.name, True, learners, flops, 1e9 * card.bandwidth_gb_s)
    time = step_time(shape, alone, machine, lengths)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    per_card = num_rows / split.num_generate
    decodes = decoding_steps(max(per_card, 1.0), lengths, at_once)
    # The parts of an engine sum their shares of the hidden states twice per layer.
    hidden = compute_width(config) * shape.hidden_size * per_card * lengths.response / decodes
    adding = 4 * shape.num_layers * cluster.all_gather(hidden, parts) if parts > 1 else 0.0
    generate = time.generate + decodes * adding
    num_tokens = num_rows * (lengths.prompt + lengths.response)
    fills = max(num_tokens / split.num_learn / config.actor.micro_batch_tokens, 1.0)
    traffic = rank_traffic(shape, planned, lengths.longest, fills)
    learn = time.learn + traffic.seconds(cluster, split.num_learn)
    work = max(generate, learn) if time.is_ahead else generate + learn
    num_cards = split.num_learn + (0 if split.in_turns else split.num_generate)
    seconds = work + cluster.new_weights(weights, -(-num_cards // cluster.per_node)) + time.other
    peak = memory_need.learner_peak(memory_plan(shape, planned)).total_bytes / _GIB
    starves = memory_need.starves_engine(shape, planned, card.memory_gib)
    fits = peak + memory_need.CUDA_GIB <= card.memory_gib and not starves
    return Scaled(split, seconds, num_tokens / seconds, fits)


def fullest_rank(config: RunConfig, lengths: Lengths, ranks: int) -> float:
    """Returns the work of the fullest rank in an update, as a multiple of the mean.

    Groups stay whole: a rank has at least one, which may be the longest. If it has more, long
    groups are paired with short ones. Lengths are exponentially distributed, cut at the longest.
    """
    num_groups = config.actor.mini_batch_size
    if ranks == 1:
        return 1.0
    size = config.algorithm.group_size
    mean = lengths.prompt + size * lengths.response
    # A group of n responses has sqrt(n) times the standard deviation of one, which is the mean.
    spread = math.sqrt(size) * lengths.response * math.sqrt(2 * math.log(num_groups))
    longest = min(mean + spread, lengths.prompt + size * lengths.longest)
    per_rank = num_groups / ranks
    return max(math.ceil(per_rank) / per_rank, longest / (per_rank * mean))


def best_split(
    shape: ModelShape, config: RunConfig, cluster: Cluster, lengths: Lengths, num_cards: int
) -> Scaled:
    """Returns the fastest split of so many cards that fits; a rank has at least one group."""
    grain, most = max(1, num_cards // 64), min(num_cards, config.actor.mini_batch_size + 1)
    every = [
        simulate(shape, config, cluster, lengths, Split(learn, num_cards - learn, parts))
        for parts in (1, 2, 4, 8)
        for learn in range(grain, most, grain)
        if (num_cards - learn) % parts == 0 and memory_need.why_not_split(shape, parts) is None
    ]
    return max((one for one in every if one.fits), key=lambda one: one.tokens_per_s)


def table(config: RunConfig, cluster: Cluster) -> Iterator[str]:
    """Yields the rows of Markdown: the same batch on more nodes, and one that grows with them."""
    shape = model_shape(config)
    assert shape is not None, "name a model whose shape is known here"
    lengths = roofline.guess_lengths(config)
    yield "| nodes | learn + generate | s/step | tokens/s | kept | kept as prompts grow |"
    yield "|---|---|---|---|---|---|"
    first: list[float] = []
    for nodes in NODES:
        prompts = nodes * config.data.train_batch_size
        per_update = nodes * config.actor.mini_batch_size
        sizes: dict[str, Value] = {"data.train_batch_size": prompts}
        grown = with_unchecked(config, sizes | {"actor.mini_batch_size": per_update})
        num_rows, most = prompts * config.algorithm.group_size, config.data.max_response_length
        longest = roofline.expected_longest(lengths.response, num_rows, most)
        longer = replace(lengths, longest=longest)
        cards = nodes * cluster.per_node
        same = best_split(shape, config, cluster, lengths, cards)
        more = best_split(shape, grown, cluster, longer, cards)
        first = first or [same.tokens_per_s, more.tokens_per_s]
        kept = [x.tokens_per_s / nodes / y for x, y in zip((same, more), first, strict=True)]
        split, per_s = f"{same.split.num_learn} + {same.split.num_generate}", same.tokens_per_s
        row = [str(nodes), split, f"{same.seconds:.1f}", f"{per_s:,.0f}"]
        yield f"| {' | '.join([*row, *(f'{share:.2f}' for share in kept)])} |"


def main() -> None:
    """Prints the table."""
    sys.stdout.writelines(f"{row}\n" for row in table(compose([*PRESET, *sys.argv[1:]]), H100S))


if __name__ == "__main__":
    main()
