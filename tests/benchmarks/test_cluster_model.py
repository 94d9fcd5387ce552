"""A step on many cards: what ranks send, by hand, the search, and steps of others."""

from dataclasses import replace
from typing import Any

import pytest

from flows.settings.compose import compose
from rl_core.config.run import RunConfig
from rl_core.resources.known_shapes import known_shape
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import Lengths, expected_longest
from rl_core.system.devices import named_card
from tests.rl_core.resources.test_roofline import LLAMA_8B, QWEN3_32B
from tests.support.harness import ROOT, benchmark
from tests.support.runs import merged, run_config

model = benchmark("cluster_model")
Cluster, Split, Traffic, H100S = model.Cluster, model.Split, model.Traffic, model.H100S
QWEN_3B = known_shape("Qwen/Qwen2.5-3B")
assert QWEN_3B is not None
LENGTHS = Lengths(128, 256, 1_024)


def config(**sections: dict[str, Any]) -> RunConfig:
    model = {"dtype": "bfloat16", "gradient_checkpointing": True}
    return run_config(**merged({"model": model, "rollout": {"staleness": 1}}, sections))


TINY = ModelShape(
    hidden_size=4, intermediate_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_size=2,
    vocab_size=10, tied=True, attention_bias=True,
)  # fmt: skip
ACTOR = 10 * 4 + 2 * (4 * (4 + 2 * 2 + 4) + (4 + 2 * 2) + 3 * 4 * 8 + 2 * 4) + 4
CRITIC = ACTOR + 4 + 1
LAYERS = ACTOR - 10 * 4 - 4
"""Of an actor or a critic: gathered once more, for the backward pass."""
ADAPTERS = 2 * 3 * (2 * (4 + 4) + 2 * (4 + 2) + 3 * (4 + 8))
"""Of rank 3."""


def traffic(*, fills: float = 1.0, **sections: dict[str, Any]) -> Any:
    settings = {
        "data": {"train_batch_size": 8},
        "actor": {"mini_batch_size": 4, "ppo_epochs": 3},
        "resources": {"learner_ranks": 2},
    }
    return model.rank_traffic(TINY, run_config(**merged(settings, sections)), 5, fills)


def test_ppo_gathers_for_each_pass_and_scatters_after_each_backward():
    """Old log-probs, reference, values; then 3 epochs of 2 updates of actor and critic."""
    ours = traffic()
    updated = 6 * (ACTOR + CRITIC)
    assert ours.gathered[0] == 4 * (ACTOR + ACTOR + CRITIC + updated + 6 * 2 * LAYERS)
    assert ours.scattered[0] == 4 * updated
    assert ours.summed[0] == 3 * 4 * 8 * 5
    assert ours.handed[0] == 4 * ACTOR
    # Of each model, two layers and the rest; backwards two layers.
    assert ours.gathered[1] == 3 * 3 + 6 * 2 * (3 + 2)
    # Each of two mini-batches in two parts, the whole batch in three.
    more = traffic(fills=2.5)
    assert more.scattered[0] == 2 * ours.scattered[0]
    passes = 3 * (ACTOR + ACTOR + CRITIC) + 2 * (updated + 6 * 2 * LAYERS)
    assert more.gathered[0] == 4 * passes


def test_what_is_not_computed_is_not_gathered():
    group = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
    one_update = {"mini_batch_size": 8, "ppo_epochs": 1}
    ours = traffic(algorithm=group, actor=one_update)
    # The only update's own pass has the old log-probs, which are added up once.
    assert ours.gathered[0] == 4 * (ACTOR + LAYERS)
    assert ours.scattered[0] == 4 * ACTOR
    assert ours.summed[0] == 4 * 16 * 5


def test_beside_adapters_they_alone_are_sent():
    ours = traffic(model={"lora_rank": 3}, algorithm={"estimator": "reinforce_plus_plus"})
    assert ours.gathered[0] == 4 * (ADAPTERS + 6 * 2 * ADAPTERS)
    assert ours.scattered[0] == 4 * 6 * ADAPTERS
    assert ours.handed[0] == 4 * 2 * TINY.num_layer_parameters  # once they are multiplied out
    assert ours.summed[0] == 2 * 4 * 8 * 5  # old log-probs and the reference's


def test_bytes_and_seconds_follow_from_the_counts():
    ours = Traffic(gathered=(800, 2), scattered=(400, 1), summed=(40, 1), handed=(160, 4))
    assert ours.bytes_sent(4) == 0.75 * (800 + 400 + 160 + 2 * 40)
    link = replace(named_card("H100"), link_gb_s=1e-6 / 0.8)
    hops = 3 * 2e-6 * (2 + 1 + 2 + 4)
    assert ours.seconds(Cluster(link, 8, 1.0), 4) == pytest.approx(ours.bytes_sent(4) / 1e3 + hops)
    assert ours.seconds(H100S, 1) == 0.0


def test_a_ring_enters_each_machine_once_over_all_its_network():
    four = Cluster(replace(named_card("H100"), link_gb_s=1e-7), 4, 10.0)
    assert four.all_gather(800, 4) == pytest.approx(0.75 * 800 / 80 + 3 * 2e-6)
    assert four.all_gather(800, 8) == pytest.approx(7 / 8 * 800 / 32 + 6 * 2e-6 + 2e-5)
    assert four.new_weights(3e9, 1) == pytest.approx(1)
    assert four.new_weights(32, 8) == pytest.approx(3 * 32 / 32)


def test_the_best_split_is_the_fastest_of_all_that_fit():
    settings = config(model={"lora_rank": 16})
    every = [
        model.simulate(QWEN_3B, settings, H100S, LENGTHS, Split(learn, 8 - learn, parts))
        for learn in range(1, 8)
        for parts in (1, 2, 4)
        if (8 - learn) % parts == 0
    ]
    best = model.best_split(QWEN_3B, settings, H100S, LENGTHS, 8)
    assert best.tokens_per_s == max(one.tokens_per_s for one in every if one.fits)
    few = config(data={"train_batch_size": 4}, actor={"mini_batch_size": 4})
    assert model.best_split(QWEN_3B, few, H100S, LENGTHS, 64).split.num_learn <= 4
    whole = model.simulate(QWEN_3B, config(), H100S, LENGTHS, Split(1, 1, 1))
    assert not whole.fits


def test_the_table_of_the_docs_is_what_it_prints():
    rows = list(model.table(compose(list(model.PRESET)), H100S))
    assert "\n".join(rows) in (ROOT / "docs" / "cluster.md").read_text()
    kept = [float(row.split("|")[-2]) for row in rows[2:]]
    assert min(kept) > 0.9, "with prompts that grow, machines are not in vain"


def by_rows(num_rows: int, most: int, *, ahead: int, **algorithm: str) -> RunConfig:
    """Of programs that deal out rows, not groups, and compute a group's prompt for each of them."""
    return config(
        algorithm={"estimator": "reinforce_plus_plus", **algorithm},
        data={"train_batch_size": num_rows, "max_response_length": most},
        actor={"mini_batch_size": 512, "micro_batch_tokens": 16_384},
        rollout={"staleness": ahead},
    )


@pytest.mark.parametrize(
    ("shape", "split", "ahead", "tokens", "published_s"),
    [
        (LLAMA_8B, Split(16, 16, 1, True), 0, 1_060, 97.7),
        (LLAMA_8B, Split(8, 8, 1, False), 1, 1_129, 74.6),
        (QWEN3_32B, Split(32, 32, 4, True), 0, 3_206, 393.0),
        (QWEN3_32B, Split(32, 32, 4, False), 1, 3_207, 215.0),
    ],
    ids=["8B, 16 in turns", "8B, 8 + 8", "32B, 32 in turns", "32B, 32 + 32"],
)
def test_nemo_rls_steps_within_a_factor_of_one_and_a_half(shape, split, ahead, tokens, published_s):
    """NeMo RL 0.4 on DGX H100: 2,048 rollouts per step, 4 updates, KL in the loss, 4,096 tokens.

    Source: github.com/NVIDIA-NeMo/RL, docs/about/performance-summary.md (v0.4: mean tokens of a
    rollout, cards, seconds), splits in examples/configs/recipes/llm/performance. Nothing is fitted.
    """
    settings = by_rows(2_048, 3_584, ahead=ahead, kl_mode="loss", kl_estimator="k2")
    settings = settings.model_copy(
        update={"model": settings.model.model_copy(update={"gradient_checkpointing": False})}
    )
    response = tokens - 130
    lengths = Lengths(130, response, expected_longest(response, 2_048, 3_584))
    seconds = model.simulate(shape, settings, H100S, lengths, split).seconds
    assert 1 / 1.5 < seconds / published_s < 1.5


@pytest.mark.parametrize(
    ("most", "response", "measured"),
    [
        (28_672, 1_500, {(32, 32): 790.1, (64, 64): 365.3, (128, 128): 356.3}),
        (20_480, 650, {(16, 16): 749.0, (12, 4): 520.0}),
    ],
    ids=["fully_async.md, colocated", "one_step_off.md"],
)
def test_verls_steps_within_a_factor_of_one_and_a_half(most, response, measured):
    """verl, DAPO with Qwen2.5-Math-7B on H20s: 512 prompts x 16, 16 updates, FSDP2 and vLLM.

    Source: github.com/volcengine/verl, docs/advance/fully_async.md (18 October 2025) and
    one_step_off.md (17 July 2025). The mean response is not published: it is fitted, one number for
    each table, to its first row; the others follow.
    """
    shape = known_shape("Qwen/Qwen2.5-7B")
    assert shape is not None
    cluster = Cluster(named_card("H20"), 8, 50e9)
    lengths = Lengths(150, response, expected_longest(response, 8_192, most))
    for (learn, generate), published_s in measured.items():
        in_turns = learn == generate
        settings = by_rows(8_192, most, ahead=int(not in_turns), kl_mode="none")
        parts = 1 if most > 20_480 else 2
        split = Split(learn, generate, parts, in_turns=in_turns)
        seconds = model.simulate(shape, settings, cluster, lengths, split).seconds
        assert 1 / 1.5 < seconds / published_s < 1.5, (split, seconds)


def test_the_fullest_rank_has_whole_groups_and_perhaps_the_longest():
    def fullest(ranks: int, lengths: Lengths, size: int = 1) -> float:
        group = {"estimator": "grpo", "group_size": size} if size > 1 else {}
        settings = {"data": {"train_batch_size": 8}, "actor": {"mini_batch_size": 8}}
        result = model.fullest_rank(run_config(**settings, algorithm=group), lengths, ranks)
        assert isinstance(result, float)
        return result

    even = Lengths(10, 10, 10)
    assert fullest(1, even) == fullest(4, even) == fullest(8, even) == 1.0
    assert fullest(3, even) == pytest.approx(3 / (8 / 3))  # one of three has three of eight
    # A group alone on each rank: the longest of 8 responses, of 20 tokens where the mean is 10.
    assert fullest(8, Lengths(10, 10, 20)) == pytest.approx(30 / 20)
    # Beside a shorter one it is no longer the fullest.
    assert fullest(2, Lengths(10, 10, 20)) == 1.0
    assert fullest(8, Lengths(10, 10, 500), size=64) < fullest(8, Lengths(10, 10, 500))
