"""What ranks send each other: counted by hand; against a real step: tests/rl_core/learner/."""

from __future__ import annotations

from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.resources.collectives import Links
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.rank_traffic import RankTraffic, rank_traffic

TINY = ModelShape(
    hidden_size=4, intermediate_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_size=2,
    vocab_size=10, tied=True, attention_bias=True,
)  # fmt: skip
ACTOR = 10 * 4 + 2 * (4 * (4 + 2 * 2 + 4) + (4 + 2 * 2) + 3 * 4 * 8 + 2 * 4) + 4
CRITIC = ACTOR + 4 + 1
ADAPTERS = 2 * 3 * (2 * (4 + 4) + 2 * (4 + 2) + 3 * (4 + 8))
"""Of rank 3."""


def traffic(**sections: dict[str, Any]) -> RankTraffic:
    settings = {
        "data": {"train_batch_size": 8},
        "actor": {"mini_batch_size": 4, "ppo_epochs": 3},
        "resources": {"learner_ranks": 2},
    }
    names = settings.keys() | sections.keys()
    merged = {name: settings.get(name, {}) | sections.get(name, {}) for name in names}
    return rank_traffic(TINY, RunConfig.model_validate(merged), longest=5)


def test_ppo_gathers_for_each_pass_and_scatters_after_each_update() -> None:
    """Old log-probs, reference, values; then 3 epochs of 2 updates of actor and critic."""
    ours = traffic()
    updated = 6 * (ACTOR + CRITIC)
    assert ours.gathered_bytes == 4 * (ACTOR + ACTOR + CRITIC + updated)
    assert ours.scattered_bytes == 4 * updated
    assert ours.summed_bytes == 3 * 4 * 8 * 5
    assert ours.handed_bytes == 4 * ACTOR
    assert ours.num_gathers == (3 + 6 * 2) * 3  # of each model, two layers and the rest


def test_what_is_not_computed_is_not_gathered() -> None:
    group = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
    one_update = {"mini_batch_size": 8, "ppo_epochs": 1}
    ours = traffic(algorithm=group, actor=one_update)
    # The only update's own pass has the old log-probs, which are added up once.
    assert ours.gathered_bytes == ours.scattered_bytes == 4 * ACTOR
    assert ours.summed_bytes == 4 * 16 * 5
    shared = traffic(critic={"share_trunk": True})
    updated = 6 * (ACTOR + 4 + 1)
    assert shared.gathered_bytes == 4 * (ACTOR + 4 + 1 + ACTOR + updated)


def test_beside_adapters_they_alone_are_sent() -> None:
    ours = traffic(model={"lora_rank": 3}, algorithm={"estimator": "reinforce_plus_plus"})
    assert ours.gathered_bytes == 4 * (ADAPTERS + 6 * ADAPTERS)
    assert ours.scattered_bytes == 4 * 6 * ADAPTERS
    assert ours.handed_bytes == 4 * 2 * TINY.num_layer_parameters  # once they are multiplied out
    assert ours.summed_bytes == 2 * 4 * 8 * 5  # old log-probs and the reference's


def test_bytes_and_seconds_follow_from_the_counts() -> None:
    ours = RankTraffic(
        gathered_bytes=800,
        num_gathers=2,
        scattered_bytes=400,
        num_scatters=1,
        summed_bytes=40,
        num_sums=1,
        handed_bytes=160,
        num_handed=4,
    )
    assert ours.bytes_sent(4) == 0.75 * (800 + 400 + 160 + 2 * 40)
    links = Links(per_node=8, within=1e3 / 0.8, between=1.0)
    hops = 3 * 2e-6 * (2 + 1 + 2 + 4)
    assert ours.seconds(links, 4) == pytest.approx(ours.bytes_sent(4) / 1e3 + hops)
    assert ours.seconds(links, 1) == 0.0
