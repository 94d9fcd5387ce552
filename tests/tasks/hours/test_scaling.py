"""One run on more cards: each phase by hand, the search against trying all, and steps of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.resources.known_shapes import known_shape
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import (
    Lengths,
    Machine,
    Shares,
    expected_longest,
    forward_flops,
    fullest_rank,
    step_time,
)
from rl_core.system.cards import named_card
from tasks.hours.scaling import (
    Cluster,
    Doubling,
    Split,
    best_split,
    doublings,
    numbers_of_cards,
    obstacle,
    simulate,
    splits,
    with_batch,
)
from tests.rl_core.resources.test_roofline import LLAMA_8B, QWEN3_32B, TINY

PERFECT = Shares(1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
QWEN_3B = known_shape("Qwen/Qwen2.5-3B")
assert QWEN_3B is not None
H100S = Cluster(named_card("H100"), 8, 50e9)
"""Eight a machine, 400 Gbit/s each between machines."""


def config(**sections: dict[str, Any]) -> RunConfig:
    given: dict[str, dict[str, Any]] = {
        "model": {"dtype": "bfloat16", "gradient_checkpointing": True},
        "rollout": {"staleness": 1},
    }
    names = given.keys() | sections.keys()
    return RunConfig.model_validate(
        {name: given.get(name, {}) | sections.get(name, {}) for name in names}
    )


LENGTHS = Lengths(128, 256, 1_024)


def test_a_step_on_two_ranks_and_two_engines_by_hand() -> None:
    """1,000 bytes and 1,000 operations a second; 4 prompts of 2 tokens, 3 tokens of response."""
    settings = config(
        model={"gradient_checkpointing": False},
        data={"train_batch_size": 4},
        actor={"mini_batch_size": 4, "micro_batch_tokens": 8_192},
        algorithm={"estimator": "reinforce_plus_plus", "kl_mode": "none"},
        rollout={"num_engines": 2, "max_num_seqs": 2},
        resources={"learner_ranks": 2, "learner_gpus": 1, "rollout_gpus": 1},
    )
    lengths = Lengths(2, 3, 3)
    links = H100S.links
    machine = Machine("by hand", True, 2 * 1e3, 1e18, 1e3, links)
    step = step_time(TINY, settings, machine, lengths, PERFECT)
    weights = TINY.num_parameters
    # Two rows on each engine: three decoding steps read the weights, 6 tokens 3.5 keys and values.
    assert step.decoding == pytest.approx(3 * 2 * weights / 1e3)
    assert step.tokens == pytest.approx(2 * 2 * 2 * 2 * (2 * 3 * 3.5) / 1e3)
    # One update of three passes, whose own log-probs are the old ones.
    passes = 3 * forward_flops(TINY, 4, lengths, num_prompts=4, has_head=True)
    assert step.passes == pytest.approx(passes / 2e3)
    assert step.uneven == pytest.approx(step.passes * (fullest_rank(settings, lengths) - 1))
    assert step.launches == pytest.approx(7 * 4 * weights / 1e3 / 2)  # AdamW, a half each
    # Weights gathered, gradients scattered, weights handed to the engines; 4 x 3 log-probs summed.
    sent = 4 * weights * 3 + 2 * 4 * 4 * 3
    hops = 2e-6 * (3 + 26 + 26 + 2)
    assert step.gather == pytest.approx(sent / 2 / (0.8 * 450e9) + hops)
    assert step.sync == pytest.approx(links.broadcast(2 * weights, 4))
    assert step.ahead == 1
    assert step.total == pytest.approx(max(step.generate, step.learn + step.gather) + step.sync)


def test_the_fullest_rank_has_whole_groups_and_perhaps_the_longest() -> None:
    def fullest(ranks: int, lengths: Lengths, size: int = 1) -> float:
        group = {"estimator": "grpo", "group_size": size} if size > 1 else {}
        resources = {"learner_ranks": ranks, "learner_gpus": 1 if ranks > 1 else 0}
        actor = {"mini_batch_size": 8}
        return fullest_rank(config(algorithm=group, actor=actor, resources=resources), lengths)

    even = Lengths(10, 10, 10)
    assert fullest(1, even) == fullest(4, even) == fullest(8, even) == 1.0
    assert fullest(3, even) == pytest.approx(3 / (8 / 3))  # one of three has three of eight
    # A group alone on each rank: the longest of 8 responses, of 20 tokens where the mean is 10.
    assert fullest(8, Lengths(10, 10, 20)) == pytest.approx(30 / 20)
    # Beside a shorter one it is no longer the fullest.
    assert fullest(2, Lengths(10, 10, 20)) == 1.0
    assert fullest(8, Lengths(10, 10, 500), size=64) < fullest(8, Lengths(10, 10, 500))


def test_several_steps_ahead_wait_for_their_longest_together() -> None:
    settings = config(resources={"learner_gpus": 1, "rollout_gpus": 1})
    machine = Machine("by hand", True, 1e18, 1e18, 1e9)

    def decoding(ahead: int) -> float:
        rollout = settings.rollout.model_copy(update={"staleness": ahead, "max_num_seqs": 4_096})
        planned = settings.model_copy(update={"rollout": rollout})
        return step_time(TINY, planned, machine, LENGTHS, PERFECT).decoding

    assert decoding(0) == decoding(1)
    assert decoding(4) == pytest.approx(decoding(1) / 4)


def test_card_seconds_add_up_to_all_cards_all_the_time() -> None:
    scaled = simulate(QWEN_3B, config(), H100S, LENGTHS, Split(6, 2, 2, takes_turns=False))
    assert sum(scaled.card_seconds().values()) == pytest.approx(8 * scaled.time.total)
    assert scaled.card_seconds()["idle"] > 0
    in_turns = simulate(QWEN_3B, config(), H100S, LENGTHS, Split(8, 8, 1, takes_turns=True))
    assert sum(in_turns.card_seconds().values()) == pytest.approx(8 * in_turns.time.total)
    assert in_turns.card_seconds()["idle"] == pytest.approx(0)


@pytest.mark.parametrize("num_cards", [1, 2, 4, 8, 24])
def test_the_best_split_is_the_fastest_of_all_that_can_be_run(num_cards: int) -> None:
    settings = config(model={"lora_rank": 16})
    every = [
        Split(learn, num_cards - learn, parts, takes_turns=False)
        for learn in range(1, num_cards)
        for parts in (1, 2, 4, 8)
        if (num_cards - learn) % parts == 0
    ]
    if num_cards == 1:
        every = [Split(1, 1, 1, takes_turns=True)]
    able = [
        scaled.tokens_per_s
        for split in every
        if obstacle(
            QWEN_3B,
            settings,
            H100S,
            scaled := simulate(QWEN_3B, settings, H100S, LENGTHS, split),
        )
        is None
    ]
    best = best_split(QWEN_3B, settings, H100S, LENGTHS, num_cards)
    assert best.obstacle is None
    assert best.tokens_per_s == pytest.approx(max(able))


def test_what_is_proposed_fits_and_is_valid() -> None:
    best = best_split(QWEN_3B, config(), H100S, LENGTHS, 8)
    assert max(best.learner_gib, best.engine_gib) <= 80
    learn, generate = best.split.num_learn, best.split.num_generate
    assert learn + generate == best.split.num_cards == 8
    assert best.settings["resources.learner_ranks"] == learn
    assert best.settings["rollout.num_engines"] == generate // best.split.tensor_parallel_size
    # Of one card nothing fits, and it says what is wanted.
    one = best_split(QWEN_3B, config(), H100S, LENGTHS, 1)
    assert one.obstacle is not None
    assert one.obstacle.startswith("a learner rank needs 1")


def test_ranks_share_no_card_with_engines_yet() -> None:
    turns = simulate(
        QWEN_3B, config(rollout={"staleness": 0}), H100S, LENGTHS, Split(8, 8, 1, True)
    )
    why = obstacle(QWEN_3B, config(rollout={"staleness": 0}), H100S, turns)
    assert why == "the settings do not allow it"
    asked = best_split(QWEN_3B, config(rollout={"staleness": 0}), H100S, LENGTHS, 8, in_turns=True)
    assert asked.split.takes_turns
    assert asked.time.ahead == 0


def test_a_rank_has_at_least_one_group() -> None:
    few = config(data={"train_batch_size": 4}, actor={"mini_batch_size": 4})
    assert max(split.num_learn for split in splits(QWEN_3B, few, H100S, 64)) == 4


def test_the_same_step_on_more_cards_loses_more_and_more_of_them() -> None:
    """Strong scaling: the longest response takes its time on any engine."""
    scaled = [best_split(QWEN_3B, config(), H100S, LENGTHS, n) for n in (4, 8, 16, 32)]
    gained = doublings(scaled)
    assert [one.tokens_per_s for one in scaled] == sorted(one.tokens_per_s for one in scaled)
    assert gained[-1].efficiency < 0.6
    assert gained[-1].lost_to == "decoding"


def test_more_prompts_fill_more_cards() -> None:
    """Weak scaling: to 64 cards each doubling gives 0.9 of twice the tokens."""
    cards = (4, 8, 16, 32, 64)
    scaled = [best_split(QWEN_3B, with_batch(config(), n // 4), H100S, LENGTHS, n) for n in cards]
    assert all(doubling.efficiency > 0.9 for doubling in doublings(scaled))


def test_a_doubling_loses_to_what_grows() -> None:
    fewer = simulate(QWEN_3B, config(), H100S, LENGTHS, Split(4, 4, 1, False))
    half = {name: s / 2 for name, s in vars(fewer.time).items() if name != "ahead"}
    perfect = replace(fewer, split=Split(8, 8, 1, False), time=replace(fewer.time, **half))
    assert Doubling(fewer, perfect).efficiency == pytest.approx(1)
    slow = replace(perfect, time=replace(perfect.time, sync=perfect.time.sync + 5))
    assert Doubling(fewer, slow).lost_to == "sync"
    assert Doubling(fewer, slow).efficiency < 1
    half_more = replace(perfect, split=Split(6, 6, 1, False))
    assert Doubling(fewer, half_more).efficiency == pytest.approx(2 / 1.5)


def test_numbers_of_cards_double_up_to_the_last() -> None:
    assert numbers_of_cards(1) == [1]
    assert numbers_of_cards(8) == [1, 2, 4, 8]
    assert numbers_of_cards(24) == [1, 2, 4, 8, 16, 24]


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
def test_nemo_rls_steps_within_a_factor_of_one_and_a_half(
    shape: ModelShape, split: Split, ahead: int, tokens: int, published_s: float
) -> None:
    """NeMo RL 0.4 on DGX H100: 2,048 rollouts per step, 4 updates, KL in the loss, 4,096 tokens.

    Source: github.com/NVIDIA-NeMo/RL, docs/about/performance-summary.md (v0.4: mean tokens of a
    rollout, cards, seconds), splits in examples/configs/recipes/llm/performance. Nothing is fitted.
    """
    settings = by_rows(2_048, 3_584, ahead=ahead, kl_mode="loss", kl_estimator="k3")
    settings = settings.model_copy(
        update={"model": settings.model.model_copy(update={"gradient_checkpointing": False})}
    )
    response = tokens - 130
    lengths = Lengths(130, response, expected_longest(response, 2_048, 3_584))
    seconds = simulate(shape, settings, H100S, lengths, split).time.total
    assert 1 / 1.5 < seconds / published_s < 1.5


@pytest.mark.parametrize(
    ("most", "response", "measured"),
    [
        (28_672, 1_500, {(32, 32): 790.1, (64, 64): 365.3, (128, 128): 356.3}),
        (20_480, 650, {(16, 16): 749.0, (12, 4): 520.0}),
    ],
    ids=["fully_async.md, colocated", "one_step_off.md"],
)
def test_verls_steps_within_a_factor_of_one_and_a_half(
    most: int, response: int, measured: dict[tuple[int, int], float]
) -> None:
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
        split = Split(learn, generate, parts, takes_turns=in_turns)
        seconds = simulate(shape, settings, cluster, lengths, split).time.total
        assert 1 / 1.5 < seconds / published_s < 1.5, (split, seconds)
