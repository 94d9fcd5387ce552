"""What a step will take, with its bounds: by guessed or seen lengths, by another run's step.

The arithmetic of one step: roofline.py.
"""

from __future__ import annotations

from typing import Final

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.resources.memory_need import sft_as_training
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import (
    ON_CPU,
    ON_GPU,
    Lengths,
    Machine,
    Shares,
    expected_longest,
    learner_seconds,
    step_time,
)

_USUAL_RESPONSE: Final = 256
"""Tokens. First responses of a 0.5B model took 181 of 1,024 allowed on Countdown (the diary) and
239 of 512 on GSM8K (verl's quickstart)."""
_HOME_MADE_SHARE: Final = 1 / 3
"""Of the response that is allowed. Quickstart's took 27 of 128 tokens at first and 43 at the end
(benchmarks/README.md)."""
_USUAL_TURNS: Final = 5.0
"""A home-made model called the calculator 3.3 times a response (benchmarks/README.md)."""
_SCALED_BOUND: Final = 1.5
"""How far a step may be from what another run's step and the roofline say together."""


def step_time_range(
    shape: ModelShape, config: RunConfig, machine: Machine, known: Lengths | None = None
) -> Spread:
    """Returns seconds per step: typical, and between which bounds it is to be expected.

    The bounds pair the best shares with short responses, the worst with responses that all fill
    `data.max_response_length`, unless their length is known.

    Args:
        shape: of the actor; the critic has the same backbone.
        config: the run's settings.
        machine: what it is planned for.
        known: lengths that runs of this model and env had; by default they are guessed.
    """
    lengths = (known,) * 3 if known is not None else guess_lengths(config)
    times = [
        step_time(shape, config, machine, *pair).total
        for pair in zip(lengths, _shares(machine), strict=True)
    ]
    return Spread(*times)


def sft_step_range(shape: ModelShape, config: RunConfig, machine: Machine) -> Spread:
    """Returns seconds per step of SFT, see `step_time_range`; measuring its loss comes on top.

    Args:
        shape: of the model.
        config: the run's settings; `sft.data` is set.
        machine: what it is planned for.
    """
    training = sft_as_training(config)
    return Spread(
        *(
            learner_seconds(shape, training, machine, *pair)
            for pair in zip(guess_lengths(training), _shares(machine), strict=True)
        )
    )


def scaled_range(
    shape: ModelShape,
    config: RunConfig,
    machine: Machine,
    known: Lengths | None,
    measured: tuple[RunConfig, Lengths, float],
) -> Spread:
    """Returns seconds per step from those of another run on the same device.

    The roofline tells how much more work a step is, the run what share of the peak is reached.

    Args:
        shape: of the actor, in both.
        config: the run's settings.
        machine: of both.
        known: lengths that are expected, else they are guessed.
        measured: of the other run: settings, lengths and seconds per step.
    """
    _, typical, _ = _shares(machine)
    other, seen, seconds = measured
    scale = seconds / step_time(shape, other, machine, seen, typical).total
    lengths = (known,) * 3 if known is not None else guess_lengths(config)
    factors = (1 / _SCALED_BOUND, 1.0, _SCALED_BOUND)
    return Spread(
        *(
            factor * scale * step_time(shape, config, machine, length, typical).total
            for factor, length in zip(factors, lengths, strict=True)
        )
    )


def _shares(machine: Machine) -> tuple[Shares, Shares, Shares]:
    return ON_GPU if machine.on_gpu else ON_CPU


def guess_lengths(config: RunConfig) -> tuple[Lengths, Lengths, Lengths]:
    """Returns lengths before any response is seen: short, usual, and as long as is allowed.

    In as many turns: one, a few, and as many as are allowed, with a token of each side at least.
    """
    most, prompt = config.data.max_response_length, config.data.max_prompt_length / 2
    is_home_made = config.model.path is None
    usual = most * _HOME_MADE_SHARE if is_home_made else min(most, _USUAL_RESPONSE)
    turns = float(config.env.max_turns)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    return (
        Lengths(prompt, usual / 2, expected_longest(usual / 2, num_rows, most)),
        Lengths(prompt, usual, expected_longest(usual, num_rows, most), min(turns, _USUAL_TURNS)),
        Lengths(prompt, most, most, min(turns, max(most / 2, 1.0))),
    )
