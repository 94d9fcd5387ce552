"""Preflight's hours and price, of the device that a run is planned for: a card, or this CPU."""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.data.dataset import count_problems
from rl_core.resources.cost import MEASURED_FROM, Spending, Spread, time_and_price_range
from rl_core.resources.roofline import Machine, sft_step_range
from rl_core.runs.run_folder import RunFolder
from rl_core.sft.named_data import planned_sft_steps
from rl_core.system.devices import CardFigures, cards_of, find_card, named_card
from rl_core.system.words import GIB
from tasks.hours import TimePlan, estimates
from tasks.preflight_checks import Finding, ok, warning
from tasks.preflight_checks.device import ask_python, cards_here
from tasks.preflight_checks.plans import model_shape

_LATER = f"from step {MEASURED_FROM} on progress shows the measured time"
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
"""Measures one thread's rate of a matrix product in float32, and of copying: in CPU time, because
other load distorts wall-clock time, and the best of many short ones (0.5 and 2 ms). The first
product only prepares the library."""


def time_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields hours and price, as a warning if a budget ends training early."""
    try:
        problems = count_problems(config)
        machines = planned_machines(config)
        plans = [
            TimePlan(config, problems, estimate)
            for estimate in estimates(config, model_shape(config), machines)
        ]
        message = _in_words(plans, machines) + _sft_in_words(config, machines)
    except ValueError:
        return  # another check reports it
    limits = {  # the budgets that the typical rates exceed
        Spending(config.budget, [plan.estimate.seconds.typical]).limit_within(plan.steps - 1)
        for plan in plans
    }
    limit = limits.pop() if len(limits) == 1 else None
    yield (
        warning(
            "time", message, f"{limit} will stop it earlier: raise it, or lower trainer.total_steps"
        )
        if limit
        else ok("time", message)
    )


def plan_steps(config: RunConfig, run: RunFolder) -> Spread | None:
    """Returns the planned seconds per step, noted in `run.json`; None if they are not known."""
    if (before := run.read().planned_step_s) is not None:
        return before  # of an earlier attempt
    known = estimates(config, model_shape(config), planned_machines(config))
    if len(known) != 1:
        return None
    run.update(planned_step_s=known[0].seconds, planned_from=str(known[0]))
    return known[0].seconds


def _in_words(plans: list[TimePlan], machines: list[Machine]) -> str:
    if not plans:
        why = "the rates of the device are not known (resources.card=NAME plans for a card)"
        why = "the model's shape is not known" if machines else why
        return f"no run of this shape yet, and {why}: {_LATER}"
    if len(plans) == 1:
        is_guess = plans[0].estimate.basis == "roofline"
        return f"{plans[0]}; {_LATER}" if is_guess else str(plans[0])
    by_card = "; ".join(plan.brief() for plan in plans)
    return (
        f"by card (a roofline), per epoch of {plans[0].problems:,} problems: {by_card}; name yours "
        f"as resources.card; {_LATER}"
    )


def _sft_in_words(config: RunConfig, machines: list[Machine]) -> str:
    """Returns time and price of the SFT before the first step, if one machine is planned for."""
    shape = model_shape(config)
    if config.sft.data is None or shape is None or len(machines) != 1:
        return ""
    steps = planned_sft_steps(config)
    whole = sft_step_range(shape, config, machines[0]).times(steps)
    took = time_and_price_range(whole, config.budget)
    return f"; SFT of {steps:,} steps before it: {took} (a roofline)"


def planned_machines(config: RunConfig) -> list[Machine]:
    """Returns the machines that the settings plan for; none if their rates are not known."""
    gpus = (config.resources.learner_gpus, config.resources.rollout_gpus)
    if 0 in gpus:
        return [] if any(gpus) else _this_cpu(config)
    return [
        Machine(
            name=card.name,
            on_gpu=True,
            learner_flops=config.resources.learner_ranks * card.flops(config.compute_dtype),
            engine_flops=card.flops(config.compute_dtype),
            bandwidth=1e9 * card.bandwidth_gb_s,
        )
        for card in _planned_cards(config)
    ]


def _planned_cards(config: RunConfig) -> list[CardFigures]:
    """Returns the card of the settings or of this machine, else all with the planned memory."""
    resources = config.resources
    if resources.card is not None:
        return [named_card(resources.card)]
    if here := cards_here():
        smallest = min(here, key=lambda card: card.total_bytes)
        if (figures := find_card(smallest.name, smallest.total_bytes / GIB)) is not None:
            return [figures]
    return cards_of(resources.gpu_memory_gib) if resources.gpu_memory_gib is not None else []


def _this_cpu(config: RunConfig) -> list[Machine]:
    if (rates := _rates_of_a_thread()) is None:
        return []
    flops, bandwidth = rates
    num_cores = len(os.sched_getaffinity(0))
    resources = config.resources
    threads = resources.learner_ranks * resources.learner_threads
    # Engines work while the learner waits, all at the same time.
    crowded = max(1.0, config.rollout.num_engines * resources.rollout_threads / num_cores)
    return [
        Machine(
            name="this CPU, undisturbed",
            on_gpu=False,
            learner_flops=flops * min(threads, num_cores),
            engine_flops=flops * resources.rollout_threads / crowded,
            bandwidth=bandwidth / crowded,
        )
    ]


@lru_cache(maxsize=1)
def _rates_of_a_thread() -> tuple[float, float] | None:
    """Measures in a process whose libraries have one thread; None if that gives no answer."""
    rates = ask_python(PROBE, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return None if rates is None else (rates[0], rates[1])
