"""One run on more and more cards: the best split of each number, and what each doubling loses.

Simulated, not measured: a step by roofline and collectives (roofline.py, rank_traffic.py), memory
by the plan (memory_plan.py), and of all splits the fastest that fits and that the settings allow.

Legend: n cards, of which some learn and the others generate; K steps ahead (`steps_ahead`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.collectives import Links
from rl_core.resources.levers import Value, with_settings, with_unchecked
from rl_core.resources.memory_need import (
    CUDA_GIB,
    ENGINE_ITSELF_GIB,
    starves_engine,
    tenants_need,
    why_not_split,
)
from rl_core.resources.memory_plan import ModelShape, compute_width, resting_learner
from rl_core.resources.placement import LEARNER, engine_name
from rl_core.resources.roofline import ON_GPU, Lengths, Machine, StepTime, step_time
from rl_core.system.cards import CardFigures

MOST_CARDS: Final = 1_024
_GIB: Final = 2**30
_MOST_OF_A_CARD: Final = 0.9
"""That an engine takes which has it for itself."""
_PARTS: Final = (1, 2, 4, 8)
"""Cards of an engine that are tried."""
_FINEST: Final = 64
"""Splits of one number of cards that are tried, at most about so many."""


@dataclass(frozen=True)
class Cluster:
    """The cards that a run is planned for."""

    card: CardFigures
    per_node: int
    network: float
    """Bytes per second between machines, of each card."""

    @property
    def links(self) -> Links:
        """What joins them."""
        return Links(self.per_node, 1e9 * self.card.link_gb_s, self.network)


@dataclass(frozen=True)
class Split:
    """Who does what on so many cards."""

    num_learn: int
    num_generate: int
    tensor_parallel_size: int
    takes_turns: bool
    """All cards do both, one after the other: then both numbers are that of all cards."""

    @property
    def num_cards(self) -> int:
        """All of them."""
        return self.num_learn if self.takes_turns else self.num_learn + self.num_generate

    def __str__(self) -> str:
        if self.takes_turns:
            return f"all {self.num_learn} in turns"
        return f"{self.num_learn} + {self.num_generate}"


@dataclass(frozen=True)
class Scaled:
    """A run on one split of the cards."""

    split: Split
    settings: dict[str, Value]
    """What the run's settings become, by name."""
    time: StepTime
    num_tokens: float
    """Of a step, prompts and responses."""
    learner_gib: float
    """Of the fullest rank; of a card that takes turns, the fuller of both moments."""
    engine_gib: float
    """Of an engine's card."""
    obstacle: str | None = None
    """Why it cannot be run, in words."""

    @property
    def tokens_per_s(self) -> float:
        """Of all cards."""
        return self.num_tokens / self.time.total

    def card_seconds(self) -> dict[str, float]:
        """Returns what a step takes of all cards, by what for: the same on any number, ideally."""
        time, split = self.time, self.split
        of_engines = {"tokens": time.tokens, "decoding": time.decoding}
        of_ranks = {
            "passes": time.passes,
            "uneven": time.uneven,
            "launches": time.launches,
            "gather": time.gather,
        }
        of_all = {"sync": time.sync, "other": time.other}
        spent = {
            **{name: split.num_generate * s for name, s in of_engines.items()},
            **{name: split.num_learn * s for name, s in of_ranks.items()},
            **{name: split.num_cards * s for name, s in of_all.items()},
        }
        return spent | {"idle": split.num_cards * time.total - sum(spent.values())}


@dataclass(frozen=True)
class Doubling:
    """From one number of cards to twice as many."""

    fewer: Scaled
    more: Scaled

    @property
    def efficiency(self) -> float:
        """Returns what twice the cards give of twice the tokens per second; so of other numbers."""
        grown = self.more.split.num_cards / self.fewer.split.num_cards
        return self.more.tokens_per_s / self.fewer.tokens_per_s / grown

    @property
    def lost_to(self) -> str:
        """Returns what takes most of what is lost, a name of `Scaled.card_seconds`."""
        # Per token: where the batch grows with the cards, so does the work.
        before, after = (
            {name: s / scaled.num_tokens for name, s in scaled.card_seconds().items()}
            for scaled in (self.fewer, self.more)
        )
        return max(after, key=lambda name: after[name] - before[name])


def simulate(
    shape: ModelShape, config: RunConfig, cluster: Cluster, lengths: Lengths, split: Split
) -> Scaled:
    """Returns a step on a split of the cards; whether it fits is asked apart, see `obstacle`.

    Args:
        shape: of the actor without adapters.
        config: the run's settings, but for how cards are split.
        cluster: the cards.
        lengths: of a step's prompts and responses.
        split: of the cards.
    """
    settings = _settings(config, split)
    planned = with_unchecked(config, settings)
    if split.num_cards > 1:
        share = _engine_share(shape, planned, cluster.card.memory_gib, split)
        settings["rollout.gpu_memory_utilization"] = share
        planned = with_unchecked(planned, settings)
    learner_gib, engine_gib = _memory(shape, planned, cluster.card.memory_gib, split)
    # In turns a card is all learner's, then all engine's.
    alone = with_unchecked(
        planned,
        {
            "resources.learner_gpus": 1.0,
            "resources.rollout_gpus": 1.0,
            "rollout.max_num_seqs": _responses_at_once(shape, planned, cluster, lengths),
        },
    )
    card, dtype = cluster.card, config.model.dtype
    machine = Machine(
        name=card.name,
        on_gpu=True,
        learner_flops=split.num_learn * card.flops(dtype),
        engine_flops=card.flops(dtype),
        bandwidth=1e9 * card.bandwidth_gb_s,
        links=cluster.links,
    )
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return Scaled(
        split=split,
        settings=settings,
        time=step_time(shape, alone, machine, lengths, ON_GPU[1], in_turns=split.takes_turns),
        num_tokens=num_rows * (lengths.prompt + lengths.response),
        learner_gib=learner_gib,
        engine_gib=engine_gib,
    )


def obstacle(shape: ModelShape, config: RunConfig, cluster: Cluster, scaled: Scaled) -> str | None:
    """Returns in words why a split cannot be run: memory or settings; None where it can."""
    limit = cluster.card.memory_gib
    needed = max(scaled.learner_gib, scaled.engine_gib)
    if needed > limit:
        who = "a learner rank" if scaled.learner_gib >= scaled.engine_gib else "an engine"
        return f"{who} needs {needed:.0f} GiB of {limit:g}"
    valid = with_settings(config, scaled.settings)
    if valid is None:
        return "the settings do not allow it"
    if starves_engine(shape, valid, limit):
        return f"an engine does not fit into {limit:g} GiB"
    return None


def best_split(
    shape: ModelShape,
    config: RunConfig,
    cluster: Cluster,
    lengths: Lengths,
    num_cards: int,
    *,
    in_turns: bool = False,
) -> Scaled:
    """Returns the fastest split that can be run, else the one that comes closest.

    Args:
        shape: of the actor without adapters.
        config: the run's settings, but for how cards are split.
        cluster: the cards.
        lengths: of a step's prompts and responses.
        num_cards: of the cluster that are used.
        in_turns: counts splits in turns as runnable if they fit, whatever the settings say.
    """
    every = [
        simulate(shape, config, cluster, lengths, split)
        for split in splits(shape, config, cluster, num_cards)
    ]
    every.sort(key=lambda scaled: -scaled.tokens_per_s)
    failed = []
    for scaled in every:
        why = obstacle(shape, config, cluster, scaled)
        if why is None or (in_turns and scaled.split.takes_turns and _fits(scaled, cluster)):
            return scaled
        failed.append(replace(scaled, obstacle=why))
    allowed = [one for one in failed if not one.split.takes_turns] or failed
    return min(allowed, key=lambda scaled: max(scaled.learner_gib, scaled.engine_gib))


def splits(
    shape: ModelShape, config: RunConfig, cluster: Cluster, num_cards: int
) -> Iterator[Split]:
    """Yields the splits of so many cards that are tried."""
    parts = [
        number
        for number in _PARTS
        if number <= min(cluster.per_node, num_cards) and why_not_split(shape, number) is None
    ]
    most_ranks = config.actor.mini_batch_size
    for number in parts:
        if num_cards <= most_ranks:
            yield Split(num_cards, num_cards, number, takes_turns=True)
        grain = max(1, num_cards // _FINEST)
        for num_learn in range(grain, min(num_cards, most_ranks + 1), grain):
            if (num_cards - num_learn) % number == 0:
                yield Split(num_learn, num_cards - num_learn, number, takes_turns=False)


def doublings(scaled: Sequence[Scaled]) -> list[Doubling]:
    """Returns each step from one number of cards to the next, of those that can be run."""
    able = [one for one in scaled if one.obstacle is None]
    return [Doubling(*pair) for pair in pairwise(able)]


def numbers_of_cards(most: int) -> list[int]:
    """Returns 1, 2, 4, ... up to so many, and that number itself."""
    powers = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*powers, most]


def with_batch(config: RunConfig, factor: int) -> RunConfig:
    """Returns the run's settings with so many times the prompts, per step and per update."""
    return with_unchecked(
        config,
        {
            "data.train_batch_size": factor * config.data.train_batch_size,
            "actor.mini_batch_size": factor * config.actor.mini_batch_size,
        },
    )


def _settings(config: RunConfig, split: Split) -> dict[str, Value]:
    shared = split.takes_turns
    settings: dict[str, Value] = {
        "resources.learner_ranks": split.num_learn,
        "resources.learner_gpus": 0.5 if shared else 1.0,
        "resources.rollout_gpus": 0.5 if shared else 1.0,
        "rollout.num_engines": split.num_generate // split.tensor_parallel_size,
        "rollout.tensor_parallel_size": split.tensor_parallel_size,
    }
    if split.num_cards > 1:
        settings["rollout.sleep"] = shared
    return settings


def _engine_share(shape: ModelShape, config: RunConfig, card_gib: float, split: Split) -> float:
    """Returns the share of a card that an engine can have: of its own, or while a rank rests."""
    incoming = compute_width(config) * shape.num_parameters / _GIB
    free = card_gib - incoming / config.rollout.tensor_parallel_size - CUDA_GIB
    if split.takes_turns:
        free -= resting_learner(shape, config).total_bytes / _GIB + CUDA_GIB
    return min(_MOST_OF_A_CARD, max(math.floor(100 * free / card_gib), 1) / 100)


def _memory(
    shape: ModelShape, config: RunConfig, card_gib: float, split: Split
) -> tuple[float, float]:
    """Returns the GiB of a learner's and of an engine's card, which may be the same."""
    engine, turns = engine_name(0), config.rollout.sleep
    if split.takes_turns:
        both = tenants_need([engine, LEARNER], shape, config, card_gib, turns=turns).total_gib
        return both, both
    learner, alone = (
        tenants_need([name], shape, config, card_gib, turns=False).total_gib
        for name in (LEARNER, engine)
    )
    return learner, alone


def _responses_at_once(
    shape: ModelShape, config: RunConfig, cluster: Cluster, lengths: Lengths
) -> int:
    """Returns how many responses of the mean length an engine's KV cache holds, as is allowed."""
    width, parts = compute_width(config), config.rollout.tensor_parallel_size
    share_gib = config.rollout.gpu_memory_utilization * cluster.card.memory_gib
    cache = parts * _GIB * (share_gib - ENGINE_ITSELF_GIB) - width * shape.num_parameters
    per_response = shape.kv_bytes(width) * (lengths.prompt + lengths.response)
    return max(1, min(config.rollout.max_num_seqs, int(cache / per_response)))


def _fits(scaled: Scaled, cluster: Cluster) -> bool:
    return max(scaled.learner_gib, scaled.engine_gib) <= cluster.card.memory_gib
