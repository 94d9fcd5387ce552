"""Finds the cheapest settings with which a run's memory plan fits into a limit.

All combinations of the levers are tried in the order of their cost, so the first that fits is the
cheapest: nothing is assumed about how levers work together.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rl_core.config.run import RunConfig
from rl_core.resources.levers import (
    LEVERS,
    Lever,
    Settings,
    Value,
    typed,
    with_settings,
    with_unchecked,
)
from rl_core.resources.memory_plan import ModelShape


@dataclass(frozen=True)
class Proposal:
    """Settings to change, and what a run with them needs."""

    changes: Settings
    """By name, the cheapest first; empty if the run fits without changes."""
    costs: Sequence[str]
    """What each change costs, as text."""
    config: RunConfig
    """With the changes, validated."""
    need_gib: float
    fits: bool
    """False: no settings fit, and these come closest."""

    @property
    def overrides(self) -> str:
        """The changes as one line to paste."""
        return typed(self.changes)


def cheapest_fit(
    config: RunConfig,
    shape: ModelShape | None,
    need_gib: Callable[[RunConfig], float],
    limit_gib: float,
    levers: Sequence[Lever] = LEVERS,
) -> Proposal:
    """Returns the cheapest changes with which the run fits, or those that come closest.

    Each lever must cost more than all before it together; `need_gib` plans a config's memory.
    """
    closest: Proposal | None = None
    for changes, costs in _by_cost(config, shape, levers):
        needed = need_gib(with_unchecked(config, changes))
        if needed > limit_gib and closest is not None and needed >= closest.need_gib:
            continue
        changed = with_settings(config, changes)
        if changed is None:
            continue
        closest = Proposal(changes, costs, changed, need_gib(changed), needed <= limit_gib)
        if closest.fits:
            break
    assert closest is not None, "settings without changes are valid"
    return closest


def _by_cost(
    config: RunConfig, shape: ModelShape | None, levers: Sequence[Lever]
) -> Iterator[tuple[dict[str, Value], list[str]]]:
    """Yields all combinations of changes with their costs, the cheapest first."""
    choices = [[(lever, value) for value in lever.steps(config, shape)] for lever in levers]
    # The last factor of a product changes fastest: it is the cheapest lever.
    for chosen in itertools.product(*([None, *steps] for steps in reversed(choices))):
        moved = [step for step in reversed(chosen) if step is not None]
        changes = {lever.name: value for lever, value in moved}
        if len(changes) == len(moved):  # else two levers moved one setting: the dearer counts
            yield changes, [lever.costs for lever, _ in moved]
