"""What a run would gain from more cards, as a table and in words; the arithmetic: scaling.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.cost import duration, price_in_words
from rl_core.resources.levers import typed
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.rank_traffic import rank_traffic
from rl_core.resources.roofline import (
    ONE_STEP_AHEAD,
    Lengths,
    expected_longest,
    fullest_rank,
    steps_ahead,
)
from tasks.hours.scaling import (
    Cluster,
    Doubling,
    Scaled,
    best_split,
    doublings,
    numbers_of_cards,
    with_batch,
)

GOAL: Final = 0.9
"""Of twice the tokens per second, from twice the cards."""
_MOST_GROWTH: Final = 1_024
_WORTH_SAYING: Final = 1.1
_STEPS: Final = 1_000
"""That are priced where nobody knows how many there will be."""


@dataclass(frozen=True)
class CardPlan:
    """One run on 1, 2, 4, ... cards."""

    shape: ModelShape
    config: RunConfig
    cluster: Cluster
    lengths: Lengths
    scaled: Sequence[Scaled]
    """On each number of cards, the best split."""
    grows: bool
    """Prompts per step grow with the cards (weak scaling), else they stay (strong)."""
    num_steps: int | None
    """Of all training, where that is known."""

    def rows(self) -> list[dict[str, object]]:
        """Returns a row for each number of cards."""
        gained = {doubling.more.split.num_cards: doubling for doubling in doublings(self.scaled)}
        return [self._row(scaled, gained.get(scaled.split.num_cards)) for scaled in self.scaled]

    def remarks(self) -> Iterator[str]:
        """Yields what the table means: what is lost where, what would help, what to type."""
        for scaled in self.scaled:
            if scaled.obstacle is not None:
                yield f"not on {_number(scaled.split.num_cards, 'card')}: {scaled.obstacle}"
        gained = doublings(self.scaled)
        able = [scaled for scaled in self.scaled if scaled.obstacle is None]
        if not able:
            return
        losing = [doubling for doubling in gained if doubling.efficiency < GOAL]
        for lost_to, alike in groupby(losing, key=lambda doubling: doubling.lost_to):
            yield self._loss(lost_to, list(alike))
        last = able[-1]
        if not steps_ahead(self.config) and not last.split.takes_turns:
            yield (
                f"learner's and engines' cards wait for each other: {ONE_STEP_AHEAD} would have "
                "the next step's responses generated meanwhile"
            )
        yield from self._in_turns(last)
        if not self.grows:
            yield self._least_batch()
        worth = next((doubling.fewer for doubling in losing), last)
        for chosen in [worth, last] if worth is not last else [last]:
            yield f"on {_number(chosen.split.num_cards, 'card')}: {typed(chosen.settings)}"

    def _row(self, scaled: Scaled, gained: Doubling | None) -> dict[str, object]:
        num_steps = self.num_steps or _STEPS
        takes, growth = f"{num_steps:,} steps", self._growth_on(scaled)
        if self.grows:
            takes = f"as prompts of {takes}"
        seconds = scaled.time.total * num_steps / growth
        machines = scaled.split.num_cards / self.cluster.per_node
        row: dict[str, object] = {
            "cards": scaled.split.num_cards,
            "learn + generate": str(scaled.split),
            "tp": scaled.split.tensor_parallel_size,
            "s/step": round(scaled.time.total, 2),
            "tokens/s": round(scaled.tokens_per_s),
            "doubling": round(gained.efficiency, 2) if gained else None,
            "GiB/rank": round(scaled.learner_gib, 1),
            "GiB/engine": round(scaled.engine_gib, 1),
            takes: duration(seconds),
        }
        if self.config.budget.price_per_hour is not None:
            row["price"] = price_in_words(machines * seconds, self.config.budget)
        if scaled.obstacle is None:
            return row
        known = ("cards", "GiB/rank", "GiB/engine")
        return {name: value if name in known else None for name, value in row.items()}

    def _loss(self, lost_to: str, alike: Sequence[Doubling]) -> str:
        found = ", ".join(
            f"{one.fewer.split.num_cards} -> {one.more.split.num_cards}: {one.efficiency:.2f}"
            for one in alike
        )
        return f"{found}: {self._why(lost_to, alike[-1].more)}"

    def _why(self, lost_to: str, scaled: Scaled) -> str:
        time, split = scaled.time, scaled.split
        ranked = self._on(scaled)
        num_rows = ranked.data.train_batch_size * ranked.algorithm.group_size
        engines = split.num_generate // split.tensor_parallel_size
        return {
            "decoding": (
                "engines read all weights for each token of the longest response, "
                f"{time.decoding:.1f} s however few they have ({num_rows / engines:.3g} responses "
                "each): more prompts per step, or more steps ahead"
            ),
            "uneven": (
                f"groups stay whole, and the fullest of {split.num_learn} ranks has "
                f"{fullest_rank(ranked, self.lengths):.2f} times the mean: a larger "
                "actor.mini_batch_size"
            ),
            "launches": (
                f"a rank's passes are too small, launches and AdamW take {time.launches:.1f} s: "
                "a larger actor.mini_batch_size"
            ),
            "gather": (
                f"ranks send {self._wire_gb(scaled):.1f} GB each per step, {time.gather:.1f} s: "
                "fewer updates per step, or adapters"
            ),
            "sync": f"engines wait {time.sync:.1f} s for new weights",
            "other": f"rewards, logs and messages take {time.other:.1f} s on any number of cards",
            "idle": (
                f"{time.generate:.1f} s of generation and {time.learn + time.gather:.1f} s of "
                "learning wait for each other"
            ),
        }.get(lost_to, f"{lost_to} grow")

    def _wire_gb(self, scaled: Scaled) -> float:
        traffic = rank_traffic(self.shape, self._on(scaled), self.lengths.longest)
        return traffic.bytes_sent(scaled.split.num_learn) / 1e9

    def _on(self, scaled: Scaled) -> RunConfig:
        """Returns the settings on so many ranks."""
        config = with_batch(self.config, self._growth_on(scaled))
        resources = {"learner_ranks": scaled.split.num_learn}
        return config.model_copy(
            update={"resources": config.resources.model_copy(update=resources)}
        )

    def _growth_on(self, scaled: Scaled) -> int:
        """Returns how many times the prompts of the settings a step has on so many cards."""
        return _growth(scaled.split.num_cards, self.scaled) if self.grows else 1

    def _in_turns(self, last: Scaled) -> Iterator[str]:
        """Says what all cards in turns would give, which several ranks cannot do yet."""
        config, num_cards = with_batch(self.config, self._growth_on(last)), last.split.num_cards
        shared = best_split(
            self.shape, config, self.cluster, self.lengths, num_cards, in_turns=True
        )
        gain = shared.tokens_per_s / last.tokens_per_s
        if shared.split.takes_turns and not last.split.takes_turns and gain > _WORTH_SAYING:
            yield (
                f"all {num_cards} cards in turns would give {gain:.2f} times that: learner ranks "
                "share no card with engines yet"
            )

    def _least_batch(self) -> str:
        most, prompts = self.scaled[-1].split.num_cards, self.config.data.train_batch_size
        factor = least_growth(self.shape, self.config, self.cluster, self.lengths, most)
        wanted = f"{GOAL:g} per doubling up to {most} cards"
        if factor is None:
            return f"{wanted}: with no batch up to {_MOST_GROWTH * prompts:,} prompts per step"
        if factor == 1:
            return f"{wanted}: holds with data.train_batch_size={prompts}"
        mini = factor * self.config.actor.mini_batch_size
        return (
            f"{wanted} wants data.train_batch_size={factor * prompts} actor.mini_batch_size={mini}"
            f" or more, {factor} times the prompts of a step: another run, with fewer updates"
        )


def plan_cards(
    shape: ModelShape,
    config: RunConfig,
    cluster: Cluster,
    lengths: Lengths,
    *,
    most: int,
    grows: bool,
    num_steps: int | None,
) -> CardPlan:
    """Returns the best split of 1, 2, 4, ... cards.

    Args:
        shape: of the actor without adapters.
        config: the run's settings; what is set of learner ranks, engines and GPUs is not read.
        cluster: the cards.
        lengths: of prompts and responses.
        most: cards.
        grows: whether prompts per step and per update grow with the cards.
        num_steps: of all training, where that is known.
    """
    numbers = numbers_of_cards(most)
    scaled: list[Scaled] = []
    for number in numbers:
        planned = with_batch(config, _growth(number, scaled)) if grows else config
        scaled.append(best_split(shape, planned, cluster, _longer(lengths, planned), number))
    return CardPlan(shape, config, cluster, lengths, scaled, grows, num_steps)


def least_growth(
    shape: ModelShape, config: RunConfig, cluster: Cluster, lengths: Lengths, most: int
) -> int | None:
    """Returns by what power of two prompts must grow for each doubling to reach the goal.

    None where none up to `_MOST_GROWTH` does.
    """
    factor = 1
    while factor <= _MOST_GROWTH:
        larger = with_batch(config, factor)
        longer = _longer(lengths, larger)
        scaled = [
            best_split(shape, larger, cluster, longer, number) for number in numbers_of_cards(most)
        ]
        reached = [doubling.efficiency for doubling in doublings(scaled)]
        if reached and min(reached) >= GOAL:
            return factor
        factor *= 2
    return None


def _longer(lengths: Lengths, config: RunConfig) -> Lengths:
    """Returns the lengths with the longest that so many responses have."""
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    most = config.data.max_response_length
    longest = max(lengths.longest, expected_longest(lengths.response, num_rows, most))
    return replace(lengths, longest=longest)


def _growth(number: int, scaled: Sequence[Scaled]) -> int:
    """Returns how many times the first number of cards that can run it there are."""
    first = next((one.split.num_cards for one in scaled if one.obstacle is None), number)
    return max(1, number // first)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
