"""Preflight's hours and price, of the device that a run is planned for: a card, or this CPU."""

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
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
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import Machine, sft_step_s, step_time, test_s, with_bounds
from rl_core.runs.run_folder import RunFolder
from rl_core.sft.named_data import planned_sft_steps
from rl_core.system.devices import CardFigures, find_card, named_card
from rl_core.system.words import GIB
from tasks.hours import StepEstimate, measured_before
from tasks.preflight_checks import Finding, ok, warning
from tasks.preflight_checks.device import ask_python, cards_here
from tasks.preflight_checks.plans import model_shape

_SHOWN_S: Final = 60.0
"""Seconds of all tests that are named apart."""
_PROBE: Final = """
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
        steps = total_steps(config, count_problems(config))
        num_tests = 1 + steps // config.trainer.test_freq
        of_tests = _roofline(config, test_s, num_tests)
        tests = of_tests.seconds if of_tests else Spread(0, 0, 0)
        known = estimate(config)
        message = _in_words(config, steps, known, tests) + _sft_in_words(config)
    except ValueError:
        return  # another check reports it
    per_step = [known.seconds.typical + tests.typical / steps] if known else []
    limit = Spending(config.budget, per_step).limit_within(steps - 1)
    remedy = f"{limit} will stop it earlier: raise it, or lower trainer.total_steps"
    yield warning("time", message, remedy) if limit else ok("time", message)


def plan_steps(config: RunConfig, run: RunFolder) -> Spread | None:
    """Returns the planned seconds per step, noted in `run.json`; None if they are not known."""
    if (before := run.read().planned_step_s) is not None:
        return before  # of an earlier attempt
    known = estimate(config)
    if known is None:
        return None
    run.update(planned_step_s=known.seconds, planned_from=known.source)
    return known.seconds


def estimate(config: RunConfig) -> StepEstimate | None:
    """Returns a step's time, measured in a run of the same shape or a roofline; None: unknown."""
    return measured_before(config) or _roofline(config, lambda *facts: step_time(*facts).total)


def _roofline(
    config: RunConfig,
    seconds: Callable[[ModelShape, RunConfig, Machine], float],
    times: int = 1,
) -> StepEstimate | None:
    """Returns so many times what a roofline gives; None for an unknown model or device."""
    shape = model_shape(config)
    machine = planned_machine(config)
    if shape is None or machine is None:
        return None
    whole = with_bounds(times * seconds(shape, config, machine))
    return StepEstimate(whole, f"a roofline of {machine.name}")


def _in_words(config: RunConfig, steps: int, known: StepEstimate | None, tests: Spread) -> str:
    later = f"from step {MEASURED_FROM} on progress shows the measured time"
    if known is None:
        why = "the rates of the device are not known (resources.card=NAME plans for a card)"
        why = "the model's shape is not known" if planned_machine(config) else why
        return f"no run of this shape yet, and {why}: {later}"
    problems = count_problems(config)
    in_epoch = steps_per_epoch(problems, config.data.train_batch_size)
    training = known.seconds.times(steps)
    whole = Spread(*map(sum, zip(astuple(training), astuple(tests), strict=True)))
    epoch, all_steps, all_tests = (
        time_and_price_range(seconds, config.budget)
        for seconds in (known.seconds.times(in_epoch), whole, tests)
    )
    return (
        f"{seconds_in_words(known.seconds)} per step ({known.source}): {epoch} per epoch of "
        f"{problems:,} problems, {all_steps} for {steps:,} steps of training"
        f"{f' with {all_tests} of tests' if tests.typical >= _SHOWN_S else ''}; {later}"
    )


def _sft_in_words(config: RunConfig) -> str:
    """Returns time and price of the SFT before the first step."""
    steps = planned_sft_steps(config) if config.sft.data is not None else 0
    whole = _roofline(config, sft_step_s, steps)
    if not steps or whole is None:
        return ""
    took = time_and_price_range(whole.seconds, config.budget)
    return f"; SFT of {steps:,} steps before it: {took} (a roofline)"


def planned_machine(config: RunConfig) -> Machine | None:
    """Returns the machine that the settings plan for; None if its rates are not known."""
    resources = config.resources
    gpus = (resources.learner_gpus, resources.rollout_gpus)
    if 0 not in gpus and (card := _card(config)) is not None:
        rate = card.flops(config.compute_dtype)
        of_all = resources.learner_ranks * rate
        return Machine(card.name, True, of_all, rate, 1e9 * card.bandwidth_gb_s)
    if any(gpus) or (rates := _rates_of_a_thread()) is None:
        return None
    flops, bandwidth = rates
    num_cores = len(os.sched_getaffinity(0))
    threads = min(resources.learner_ranks * resources.learner_threads, num_cores)
    # Engines work while the learner waits, all at the same time.
    crowded = max(1.0, config.rollout.num_engines * resources.rollout_threads / num_cores)
    of_engine = flops * resources.rollout_threads / crowded
    return Machine("this CPU, undisturbed", False, flops * threads, of_engine, bandwidth / crowded)


def _card(config: RunConfig) -> CardFigures | None:
    """Returns the card of the settings, else the smallest of this machine, if it is known."""
    if config.resources.card is not None:
        return named_card(config.resources.card)
    if not (here := cards_here()):
        return None
    smallest = min(here, key=lambda card: card.total_bytes)
    return find_card(smallest.name, smallest.total_bytes / GIB)


@lru_cache(maxsize=1)
def _rates_of_a_thread() -> tuple[float, float] | None:
    """Measures in a process whose libraries have one thread; None if that gives no answer."""
    rates = ask_python(_PROBE, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return None if rates is None else (rates[0], rates[1])
