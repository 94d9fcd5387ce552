"""Preflight's hours and price, before the first step is run."""

from __future__ import annotations

from collections.abc import Iterator

from rl_core.config.run import RunConfig
from rl_core.data.problem_count import count_problems
from rl_core.resources.cost import MEASURED_FROM, Spending, Spread, time_and_price_range
from rl_core.resources.roofline import Machine, sft_step_range
from rl_core.runs.run_folder import RunFolder
from rl_core.sft.named_data import planned_sft_steps
from tasks.hours.time_plan import TimePlan, estimates
from tasks.preflight_checks.finding import Finding
from tasks.preflight_checks.machines import planned_machines
from tasks.preflight_checks.plans import model_shape

_LATER = f"from step {MEASURED_FROM} on progress shows what is measured"


def time_findings(config: RunConfig) -> Iterator[Finding]:
    """Hours and price; a budget that ends training early is worth a warning, not more."""
    try:
        problems = count_problems(config)
        machines = planned_machines(config)
        plans = [
            TimePlan(config, problems, estimate)
            for estimate in estimates(config, model_shape(config), machines)
        ]
        said = _in_words(plans, machines) + _sft_in_words(config, machines)
    except ValueError:
        return  # said of the data
    limits = {_limit(plan) for plan in plans}
    limit = limits.pop() if len(limits) == 1 else None
    yield Finding(
        "time",
        "warning" if limit else "ok",
        said,
        f"{limit} will stop it earlier: raise it, or lower trainer.total_steps" if limit else "",
        figures={"estimates": [plan.figures() for plan in plans]},
    )


def plan_steps(config: RunConfig, run: RunFolder) -> Spread | None:
    """Returns seconds per step by what is known before training, and notes them in `run.json`.

    None where nothing is known, or where it may be one of several cards.
    """
    if (before := run.read().planned_step_s) is not None:
        return before  # of an earlier attempt
    known = estimates(config, model_shape(config), planned_machines(config))
    if len(known) != 1:
        return None
    run.update(planned_step_s=known[0].seconds, planned_from=str(known[0]))
    return known[0].seconds


def _in_words(plans: list[TimePlan], machines: list[Machine]) -> str:
    if not plans:
        why = (
            "the model's shape is not known"
            if machines
            else "the rates of the device are not known (resources.card=NAME plans for a card)"
        )
        return f"no run of this shape yet, and {why}: {_LATER}"
    if len(plans) == 1:
        is_guess = plans[0].estimate.basis == "roofline"
        return f"{plans[0]}; {_LATER}" if is_guess else str(plans[0])
    by_card = "; ".join(plan.brief() for plan in plans)
    return (
        f"by card (a roofline), per epoch of {plans[0].problems}: {by_card}; name yours as "
        f"resources.card; {_LATER}"
    )


def _sft_in_words(config: RunConfig, machines: list[Machine]) -> str:
    """What SFT takes before the first step, where one machine is planned for."""
    shape = model_shape(config)
    if config.sft.data is None or shape is None or len(machines) != 1:
        return ""
    steps = planned_sft_steps(config)
    whole = sft_step_range(shape, config, machines[0]).times(steps)
    took = time_and_price_range(whole, config.budget)
    return f"; SFT of {steps:,} steps before it: {took} (a roofline)"


def _limit(plan: TimePlan) -> str | None:
    """Returns the budget that the typical rate exceeds."""
    spending = Spending(plan.config.budget, [plan.estimate.seconds.typical])
    return spending.limit_within(plan.steps - 1)
