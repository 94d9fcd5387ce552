"""The command `countdown-train plan cards=8xH100`: what a run would gain from more cards."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flows.cli.terminal import say, show_rows
from flows.errors import BadInputError
from flows.runs.lookup import take_arguments
from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.resources.roofline import Lengths, expected_longest
from rl_core.resources.step_estimate import guess_lengths
from rl_core.system.cards import CARDS, CardFigures, find_card
from tasks.hours.card_plan import CardPlan, plan_cards
from tasks.hours.scaling import MOST_CARDS, Cluster
from tasks.hours.time_plan import lengths_seen, planned_steps
from tasks.preflight_checks.plans import model_shape

_ARGUMENTS: Final = ("cards", "nodes", "network", "response", "scaling")
_CARDS: Final = re.compile(r"(\d+) ?x ?(\S.*)")
_SCALING: Final = ("strong", "weak")


def plan(words: Sequence[str], *, output_format: str) -> None:
    """Prints the best split of 1, 2, 4, ... cards, what each doubling gives, and why not more.

    Raises:
        BadInputError: no cards are given, or a card that is unknown.
    """
    given, settings = take_arguments(words, _ARGUMENTS)
    per_node, card = _cards(given.get("cards", ""))
    nodes = _number("nodes", given.get("nodes", "1"), MOST_CARDS // per_node)
    config = compose(settings, arguments=_ARGUMENTS)
    shape = model_shape(config)
    if shape is None:
        raise BadInputError(
            f"the shape of model.path={config.model.path} is not known here: name a folder with its"
            " config.json"
        )
    scaling = given.get("scaling", _SCALING[0])
    if scaling not in _SCALING:
        raise BadInputError(f"scaling={scaling} is not {' or '.join(_SCALING)}")
    gbit = _gbit(given["network"]) if "network" in given else 8 * card.network_gb_s
    lengths, known_from = _lengths(config, given.get("response"))
    made = plan_cards(
        shape,
        config,
        Cluster(card, per_node, 1e9 * gbit / 8),
        lengths,
        most=per_node * nodes,
        grows=scaling == "weak",
        num_steps=_steps(config),
    )
    if output_format != "table":
        show_rows(made.rows(), output_format)
        return
    link = f"{card.link_gb_s:g} GB/s from card to card"
    network = f", {gbit:g} Gbit/s per card between machines (network=GBIT)" if nodes > 1 else ""
    say(f"{config.preset} on {nodes} x {per_node} {card.name}, {link}{network}; simulated")
    say(_batch(made))
    say(f"lengths {known_from}: {_lengths_in_words(lengths)}\n")
    show_rows(made.rows())
    say("\n".join(made.remarks()))


def _cards(text: str) -> tuple[int, CardFigures]:
    """Returns cards of a machine, and which."""
    found = _CARDS.fullmatch(text)
    if not found:
        raise BadInputError(f"plan takes cards=8xH100, as many as a machine has: not cards={text}")
    card = find_card(found[2])
    if card is None:
        known = ", ".join(card.name for card in CARDS)
        raise BadInputError(f"cards={text}: the figures of one card are wanted, known are {known}")
    return _number("cards", found[1], MOST_CARDS), card


def _number(name: str, text: str, most: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise BadInputError(f"{name}={text} must be a number from 1 to {most}")
    return int(text)


def _gbit(text: str) -> float:
    """Returns the Gbit/s between machines of each card."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInputError(f"network={text} must be a number of Gbit/s per card above 0")
    return value


def _lengths(config: RunConfig, response: str | None) -> tuple[Lengths, str]:
    """Returns lengths and where they come from."""
    most = config.data.max_response_length
    seen = lengths_seen(config)
    usual = seen or guess_lengths(config)[1]
    if response is None:
        return usual, "of your last run" if seen else "guessed (response=TOKENS names the mean)"
    mean = _number("response", response, most)
    num_rows = config.data.train_batch_size * config.algorithm.group_size
    longest = expected_longest(mean, num_rows, most)
    return replace(usual, response=mean, longest=longest), "as you say"


def _lengths_in_words(lengths: Lengths) -> str:
    return (
        f"prompts of {lengths.prompt:.0f} tokens, responses of {lengths.response:.0f}, the longest "
        f"of a step {lengths.longest:,.0f}"
    )


def _batch(made: CardPlan) -> str:
    data, size = made.config.data, made.config.algorithm.group_size
    per_step = f"{data.train_batch_size} prompts x {size} per step"
    if made.grows:
        return f"weak scaling: {per_step} on the fewest cards, and more as cards grow"
    return f"strong scaling: {per_step}, the same on any number of cards (scaling=weak grows them)"


def _steps(config: RunConfig) -> int | None:
    try:
        return planned_steps(config)
    except ValueError:
        return None
