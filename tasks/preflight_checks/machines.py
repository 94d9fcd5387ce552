"""Which device a run is planned for, and its peak rates: a card of the table, or this CPU."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.roofline import Machine
from rl_core.system.cards import CardFigures, cards_of, find_card, named_card
from rl_core.system.versions import version_of
from tasks.preflight_checks.device import ask_python, read_device

PROBE: Final = """
import json, time
import numpy as np
left, data = np.ones((256, 256), np.float32), np.ones(2**22, np.float32)
into, flops, bandwidth = np.empty_like(data), 0.0, 0.0
left @ left
for _ in range(200):
    start = time.process_time()
    left @ left
    flops = max(flops, 2 * 256**3 / (time.process_time() - start))
for _ in range(20):
    start = time.process_time()
    np.copyto(into, data)
    bandwidth = max(bandwidth, 2 * data.nbytes / (time.process_time() - start))
print(json.dumps([flops, bandwidth]))
"""
"""One thread's rate of a matrix product in float32, and of copying, undisturbed: CPU time, and the
best of many that are short (0.5 and 2 ms). The first product prepares the library. By the clock,
what others run meanwhile would count, and a busy machine may leave no product undisturbed."""


def planned_machines(config: RunConfig) -> list[Machine]:
    """Returns what the settings plan for: `resources.card`, else the card or CPU that is there.

    Where no card is named or there, those of `resources.gpu_memory_gib`; none where nothing here
    tells its rates.
    """
    if config.resources.learner_gpus == 0 or config.resources.rollout_gpus == 0:
        return [] if _is_mixed(config) else _this_cpu(config)
    return [
        Machine(
            name=card.name,
            on_gpu=True,
            learner_flops=config.resources.learner_ranks * card.flops(config.model.dtype),
            engine_flops=card.flops(config.model.dtype),
            bandwidth=1e9 * card.bandwidth_gb_s,
        )
        for card in planned_cards(config)
    ]


def planned_cards(config: RunConfig) -> list[CardFigures]:
    """Returns the card that is named or there, else all with the memory that is planned for."""
    resources = config.resources
    if resources.card is not None:
        return [named_card(resources.card)]
    if (found := _card_here()) is not None:
        return [found]
    return cards_of(resources.gpu_memory_gib) if resources.gpu_memory_gib is not None else []


def _card_here() -> CardFigures | None:
    """The smallest card of this machine, if its figures are known."""
    if (version_of("torch") or "").endswith("+cpu") or (facts := read_device()) is None:
        return None
    smallest = min(facts.cards, key=lambda card: card.total_bytes, default=None)
    if smallest is None:
        return None
    return find_card(smallest.name, smallest.total_bytes / 2**30)


def _is_mixed(config: RunConfig) -> bool:
    return config.resources.learner_gpus != config.resources.rollout_gpus


def _this_cpu(config: RunConfig) -> list[Machine]:
    rates = _rates_of_a_thread()
    if rates is None:
        return []
    flops, bandwidth = rates
    num_cores, resources = len(os.sched_getaffinity(0)), config.resources
    # Engines work while the learner waits, all at the same time.
    crowded = max(1.0, config.rollout.num_engines * resources.rollout_threads / num_cores)
    return [
        Machine(
            name="this CPU, undisturbed",
            on_gpu=False,
            learner_flops=flops
            * min(resources.learner_ranks * resources.learner_threads, num_cores),
            engine_flops=flops * resources.rollout_threads / crowded,
            bandwidth=bandwidth / crowded,
        )
    ]


@lru_cache(maxsize=1)
def _rates_of_a_thread() -> tuple[float, float] | None:
    """Measures, in a process whose libraries have one thread; None where it does not answer."""
    rates = ask_python(PROBE, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return None if rates is None else (rates[0], rates[1])
