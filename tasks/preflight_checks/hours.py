"""Preflight's hours and price, of the device that a run is planned for: a card, or this CPU."""

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.data.dataset import count_problems
from rl_core.data.sampling import steps_per_epoch, total_steps
from rl_core.resources.cost import (
    MEASURED_FROM,
    Spending,
    Spread,
    seconds_in_words,
    time_and_price_range,
)
from rl_core.resources.roofline import Machine, sft_step_s, with_bounds
from rl_core.runs.run_folder import RunFolder
from rl_core.sft.named_data import planned_sft_steps
from rl_core.system.devices import CardFigures, cards_of, find_card, named_card
from rl_core.system.words import GIB
from tasks.hours import StepEstimate, estimates
from tasks.preflight_checks import Finding, ok, warning
from tasks.preflight_checks.device import ask_python, cards_here
from tasks.preflight_checks.plans import model_shape

PROBE: Final = """
import json, time, timeit
import numpy as np
left, data = np.ones((256, 256), np.float32), np.ones(2**22, np.float32)
into = np.empty_like(data)
def best(call, times):
    return min(timeit.repeat(call, number=1, repeat=times, timer=time.process_time))
product, copy = best(lambda: left @ left, 200), best(lambda: np.copyto(into, data), 20)
print(json.dumps([2 * 256**3 / product, 2 * data.nbytes / copy]))
"""
"""Measures one thread's rate of a matrix product in float32, and of copying: in CPU time, because
other load distorts wall-clock time, and the best of many short ones (0.5 and 2 ms)."""


def time_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields hours and price, as a warning if a budget ends training early."""
    try:
        problems, machines = count_problems(config), planned_machines(config)
        steps = total_steps(config, problems)
        known = estimates(config, model_shape(config), machines)
        message = _in_words(config, problems, known, machines) + _sft_in_words(config, machines)
    except ValueError:
        return  # another check reports it
    limits = {  # the budgets that the typical rates exceed
        Spending(config.budget, [one.seconds.typical]).limit_within(steps - 1) for one in known
    }
    limit = limits.pop() if len(limits) == 1 else None
    remedy = f"{limit} will stop it earlier: raise it, or lower trainer.total_steps"
    yield warning("time", message, remedy) if limit else ok("time", message)


def plan_steps(config: RunConfig, run: RunFolder) -> Spread | None:
    """Returns the planned seconds per step, noted in `run.json`; None if they are not known."""
    if (before := run.read().planned_step_s) is not None:
        return before  # of an earlier attempt
    known = estimates(config, model_shape(config), planned_machines(config))
    if len(known) != 1:
        return None
    run.update(planned_step_s=known[0].seconds, planned_from=known[0].source)
    return known[0].seconds


def _in_words(
    config: RunConfig, problems: int, known: list[StepEstimate], machines: list[Machine]
) -> str:
    later = f"from step {MEASURED_FROM} on progress shows the measured time"
    if not known:
        why = "the rates of the device are not known (resources.card=NAME plans for a card)"
        why = "the model's shape is not known" if machines else why
        return f"no run of this shape yet, and {why}: {later}"
    steps, in_epoch = (
        total_steps(config, problems),
        steps_per_epoch(problems, config.data.train_batch_size),
    )
    epochs = [time_and_price_range(x.seconds.times(in_epoch), config.budget) for x in known]
    of_epoch = f"per epoch of {problems:,} problems"
    if len(known) > 1:
        by_card = "; ".join(f"{x.name} {epoch}" for x, epoch in zip(machines, epochs, strict=True))
        return f"by card (a roofline), {of_epoch}: {by_card}; name yours as resources.card; {later}"
    seconds, source = known[0]
    whole = time_and_price_range(seconds.times(steps), config.budget)
    return (
        f"{seconds_in_words(seconds)} per step ({source}): {epochs[0]} {of_epoch}, {whole} for "
        f"{steps:,} steps of training; {later}"
    )


def _sft_in_words(config: RunConfig, machines: list[Machine]) -> str:
    """Returns time and price of the SFT before the first step, if one machine is planned for."""
    shape = model_shape(config)
    if config.sft.data is None or shape is None or len(machines) != 1:
        return ""
    steps = planned_sft_steps(config)
    whole = with_bounds(steps * sft_step_s(shape, config, machines[0]))
    took = time_and_price_range(whole, config.budget)
    return f"; SFT of {steps:,} steps before it: {took} (a roofline)"


def planned_machines(config: RunConfig) -> list[Machine]:
    """Returns the machines that the settings plan for; none if their rates are not known."""
    resources = config.resources
    gpus = (resources.learner_gpus, resources.rollout_gpus)
    if 0 not in gpus:
        by_card = ((x, x.flops(config.compute_dtype)) for x in _cards(config))
        ranks = resources.learner_ranks
        return [Machine(x.name, True, ranks * f, f, 1e9 * x.bandwidth_gb_s) for x, f in by_card]
    if any(gpus) or (rates := _rates_of_a_thread()) is None:
        return []
    flops, bandwidth = rates
    num_cores = len(os.sched_getaffinity(0))
    threads = min(resources.learner_ranks * resources.learner_threads, num_cores)
    # Engines work while the learner waits, all at the same time.
    crowded = max(1.0, config.rollout.num_engines * resources.rollout_threads / num_cores)
    of_engine = flops * resources.rollout_threads / crowded
    name = "this CPU, undisturbed"
    return [Machine(name, False, flops * threads, of_engine, bandwidth / crowded)]


def _cards(config: RunConfig) -> list[CardFigures]:
    """Returns the card of the settings or of this machine, else all with the planned memory."""
    resources = config.resources
    if resources.card is not None:
        return [named_card(resources.card)]
    if here := cards_here():
        smallest = min(here, key=lambda card: card.total_bytes)
        if (known := find_card(smallest.name, smallest.total_bytes / GIB)) is not None:
            return [known]
    return cards_of(resources.gpu_memory_gib) if resources.gpu_memory_gib is not None else []


@lru_cache(maxsize=1)
def _rates_of_a_thread() -> tuple[float, float] | None:
    """Measures in a process whose libraries have one thread; None if that gives no answer."""
    rates = ask_python(PROBE, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return None if rates is None else (rates[0], rates[1])
