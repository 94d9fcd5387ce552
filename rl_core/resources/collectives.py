"""Seconds of what cards send each other: bandwidth and latency of a ring over cards in nodes.

Legend: R cards, W bytes of the whole tensor.

Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", sections 4.1 to 4.4 (rings); what NCCL does for large tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_REACHED: Final = 0.8
"""Of a link's peak: NCCL's all-gather on eight H100 reports some 360 of 450 GB/s."""
_HOP_WITHIN_S: Final = 2e-6
_HOP_BETWEEN_S: Final = 1e-5
"""Seconds from a card to the next in a ring, however little is sent."""


@dataclass(frozen=True)
class Links:
    """What joins a run's cards, at its peak."""

    per_node: int
    """Cards of one machine."""
    within: float
    """Bytes per second that a card sends to others of its machine."""
    between: float
    """Bytes per second that a card sends to other machines: its share of the machine's network."""

    def all_gather(self, num_bytes: float, num_cards: int) -> float:
        """Returns the seconds until each of R cards has all of W bytes: (R - 1) / R x W.

        In rings, whose traffic enters each machine once, over all its network.

        Args:
            num_bytes: W, of the whole, of which each card has a share before.
            num_cards: R.
        """
        if num_cards == 1:
            return 0.0
        num_nodes = math.ceil(num_cards / self.per_node)
        speed = self.within
        if num_nodes > 1:
            speed = min(speed, self.between * self.per_node)
        hops_s = (num_cards - num_nodes) * _HOP_WITHIN_S + (num_nodes > 1) * (
            num_nodes * _HOP_BETWEEN_S
        )
        return (num_cards - 1) / num_cards * num_bytes / (_REACHED * speed) + hops_s

    def reduce_scatter(self, num_bytes: float, num_cards: int) -> float:
        """Returns the seconds until each of R cards has its share of all sums: as all-gather."""
        return self.all_gather(num_bytes, num_cards)

    def all_reduce(self, num_bytes: float, num_cards: int) -> float:
        """Returns the seconds until each of R cards has the sums of W bytes."""
        return 2 * self.all_gather(num_bytes, num_cards)

    def broadcast(self, num_bytes: float, num_cards: int) -> float:
        """Returns the seconds until R - 1 cards have what one has.

        In pieces from card to card, so that the last has all a few hops after the first.
        """
        if num_cards == 1:
            return 0.0
        num_nodes = math.ceil(num_cards / self.per_node)
        speed = min(self.within, self.between) if num_nodes > 1 else self.within
        hops_s = (num_cards - num_nodes) * _HOP_WITHIN_S + (num_nodes - 1) * _HOP_BETWEEN_S
        return num_bytes / (_REACHED * speed) + hops_s
