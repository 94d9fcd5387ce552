"""What more cards would give, in a table and in words."""

from __future__ import annotations

from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.resources.cost import duration
from rl_core.resources.known_shapes import known_shape
from rl_core.resources.roofline import Lengths
from rl_core.system.cards import named_card
from tasks.hours.card_plan import CardPlan, least_growth, plan_cards
from tasks.hours.scaling import Cluster

SHAPE = known_shape("Qwen/Qwen2.5-3B")
assert SHAPE is not None
H100S = Cluster(named_card("H100"), 8, 50e9)
LENGTHS = Lengths(128, 256, 1_024)


def config(overlap: int = 1, **sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"dtype": "bfloat16", "gradient_checkpointing": True},
            "rollout": {"staleness": overlap},
            "budget": {"price_per_hour": 20.0},
        }
        | sections
    )


def plan(settings: RunConfig, most: int, *, grows: bool = False) -> CardPlan:
    return plan_cards(SHAPE, settings, H100S, LENGTHS, most=most, grows=grows, num_steps=1_000)


def test_a_row_for_each_number_of_cards_and_a_price_for_the_share_of_a_machine() -> None:
    made = plan(config(), 16)
    rows = {row["cards"]: row for row in made.rows()}
    assert list(rows) == [1, 2, 4, 8, 16]
    assert rows[1]["tokens/s"] is None  # it does not fit
    assert rows[1]["GiB/rank"] > 80  # type: ignore[operator]  # a number, for this column
    four = next(scaled for scaled in made.scaled if scaled.split.num_cards == 4)
    assert rows[4]["tokens/s"] == round(four.tokens_per_s)
    assert four.tokens_per_s == pytest.approx(256 * (128 + 256) / four.time.total)
    # Half a machine of 20 an hour.
    assert rows[4]["price"] == f"{0.5 * 20 * 1_000 * four.time.total / 3_600:.1f} EUR"
    assert rows[8]["doubling"] == round(
        rows[8]["tokens/s"] / rows[4]["tokens/s"] / 2,
        2,  # type: ignore[operator]
    )


def test_a_loss_is_told_with_its_cause_and_what_would_help() -> None:
    said = list(plan(config(), 32).remarks())
    assert said[0].startswith("not on 1 card: a learner rank needs 1")
    (loss,) = [line for line in said if " -> " in line]
    assert "16 -> 32: 0.5" in loss
    assert "longest response" in loss
    assert "more steps ahead" in loss
    (goal,) = [line for line in said if line.startswith("0.9 per doubling up to 32 cards wants")]
    assert "data.train_batch_size=" in goal
    assert said[-1].startswith("on 32 cards: resources.learner_ranks=")


def test_without_steps_ahead_it_says_that_cards_wait() -> None:
    said = "\n".join(plan(config(overlap=0), 8).remarks())
    assert "rollout.staleness=1 would have the next step's responses generated meanwhile" in said
    assert "all 8 cards in turns would give " in said
    assert "rollout.staleness=1 would" not in "\n".join(plan(config(), 8).remarks())


def test_prompts_that_grow_with_the_cards_keep_them_busy() -> None:
    made = plan(config(), 64, grows=True)
    gained = [row["doubling"] for row in made.rows() if row["doubling"] is not None]
    assert len(gained) == 4
    assert min(gained) > 0.9  # type: ignore[type-var]  # numbers
    assert not [line for line in made.remarks() if " -> " in line]
    # The same prompts in a sixteenth of the steps.
    seconds = made.scaled[-1].time.total * 1_000 / 16
    assert made.rows()[-1]["as prompts of 1,000 steps"] == duration(seconds)


def test_the_least_batch_reaches_the_goal_and_half_of_it_does_not() -> None:
    factor = least_growth(SHAPE, config(), H100S, LENGTHS, 16)
    assert factor is not None
    assert factor > 1
    data = {"train_batch_size": 256 * factor, "max_response_length": 1_024}
    enough = config(data=data, actor={"mini_batch_size": 128 * factor})
    assert least_growth(SHAPE, enough, H100S, LENGTHS, 16) == 1
    half = config(
        data=data | {"train_batch_size": 128 * factor}, actor={"mini_batch_size": 64 * factor}
    )
    assert least_growth(SHAPE, half, H100S, LENGTHS, 16) == 2


def test_where_nothing_fits_it_says_what_is_wanted() -> None:
    small = Cluster(named_card("T4"), 2, 1e9)
    made = plan_cards(SHAPE, config(), small, LENGTHS, most=2, grows=False, num_steps=None)
    said = list(made.remarks())
    assert len(said) == 2
    assert all(line.startswith("not on ") and line.endswith(" GiB of 16") for line in said)
