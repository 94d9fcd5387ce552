"""Who shares a card with whom: planned from the settings, later read off the actors.

Not here: Ray (cluster.py), bytes (memory_need.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from rl_core.config.run import RunConfig

LEARNER: Final = "learner"
_ALMOST: Final = 1e-4
"""Ray counts ten-thousandths of a card."""


def engine_name(number: int) -> str:
    """Returns the name of a rollout engine's process: of its log, in errors, in metrics."""
    return f"engine_{number}"


def learner_name(rank: int) -> str:
    """Returns the name of a learner rank's process; the first is called as one alone would be."""
    return f"{LEARNER}_{rank}" if rank else LEARNER


def card_tenants(config: RunConfig) -> list[list[str]]:
    """Returns for each card of one machine who computes on it, in the order of their start.

    As Ray places them: engines first, then the learner, a share of a card each on the fullest card
    that still has room for it, else on a new one. Who computes on the CPU is on none.
    """
    resources = config.resources
    wanted = [(engine_name(i), resources.rollout_gpus) for i in range(config.rollout.num_engines)]
    # Ranks have a card each: for the plan of one, all are alike.
    wanted += [(LEARNER, resources.learner_gpus)] * resources.learner_ranks
    cards: list[tuple[float, list[str]]] = []  # (room left, tenants)
    for name, share in wanted:
        fitting = [i for i, (room, _) in enumerate(cards) if share <= room + _ALMOST]
        if 0 < share < 1 and fitting:
            fullest = min(fitting, key=lambda i: cards[i][0])
            room, tenants = cards[fullest]
            cards[fullest] = (room - share, [*tenants, name])
        else:
            cards += [(max(1.0 - share, 0.0), [name]) for _ in range(math.ceil(share))]
    return [tenants for _, tenants in cards]


def shares_a_card(config: RunConfig) -> bool:
    """Says whether the learner has an engine on its card."""
    return any(LEARNER in tenants and len(tenants) > 1 for tenants in card_tenants(config))


def loading_queues(cards: Mapping[str, AbstractSet[tuple[str, str]]]) -> list[list[str]]:
    """Returns who loads after whom: each queue one by one, all queues at the same time.

    Whoever shares a card is in one queue: engines in their order, and learners last.

    vLLM (0.32, v1/worker/gpu_worker.py) looks at the whole card, not at its own process. At its
    start `gpu_memory_utilization` of the TOTAL memory must be free. What the card has lost between
    that look and the end of profiling counts as its own and leaves the KV cache: a learner that
    loads meanwhile costs the engine its cache, or the start ("No available memory for the cache
    blocks"). If the card has gained, because somebody gave memory back, an assertion ends it. So
    nobody else may load or free at that time. And engines go first: on the empty card the share is
    free however large, and from then on it stands, whatever the learner takes or returns. After a
    learner it would have to fit beside whatever loading has left in torch's cache.

    Args:
        cards: by process, the cards that it computes on, each as (machine, number on it).
    """
    queues: list[tuple[set[tuple[str, str]], list[str]]] = []
    # Stable: engines stay in order.
    for name in sorted(cards, key=lambda name: name.startswith(LEARNER)):
        own = set(cards[name])
        met = [queue for queue in queues if queue[0] & own]
        queues = [queue for queue in queues if not queue[0] & own]
        before = [tenant for _, tenants in met for tenant in tenants]
        queues.append((own.union(*(taken for taken, _ in met)), [*before, name]))
    return [tenants for _, tenants in queues]
