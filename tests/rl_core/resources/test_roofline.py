"""Seconds of a step before there is one: by hand, and against steps that others have timed."""

import pytest
import torch

from rl_core.config.run import RunConfig
from rl_core.learner.profiling import training_flops
from rl_core.resources import roofline
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import (
    Lengths,
    Machine,
    Shares,
    decoding_steps,
    expected_longest,
    forward_flops,
    guess_lengths,
    sft_step_s,
    step_time,
    with_bounds,
)
from rl_core.system.devices import named_card
from tests.support import model_shapes

PERFECT = Shares(1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
TINY = ModelShape(
    hidden_size=4, intermediate_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_size=2,
    vocab_size=10, tied=True, attention_bias=False,
)  # fmt: skip
TINY_LAYER = 4 * (4 + 2 * 2 + 4) + 3 * 4 * 8 + 2 * 4
QWEN_05B = ModelShape.from_config(model_shapes.QWEN_05B)
LLAMA_8B = ModelShape(4_096, 14_336, 32, 32, 8, 128, 128_256, tied=False, attention_bias=False)
QWEN3_32B = ModelShape(5_120, 25_600, 64, 64, 8, 128, 151_936, tied=False, attention_bias=False)


def on(card: str) -> Machine:
    figures = named_card(card)
    flops = figures.flops("bfloat16")
    return Machine(figures.name, True, flops, flops, 1e9 * figures.bandwidth_gb_s)


def by_hand(learner: float = 1e18, engine: float = 1e18, bandwidth: float = 1e18) -> Machine:
    return Machine("by hand", True, learner, engine, bandwidth)


def config(**changes: object) -> RunConfig:
    given: dict[str, object] = {
        "model": {"dtype": "bfloat16"},
        "data": {"train_batch_size": 32},
        "actor": {"mini_batch_size": 32, "micro_batch_tokens": 8_192},
        "resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5},
    }
    return RunConfig.model_validate(given | changes)


def test_the_first_diary_within_a_factor_of_two():
    """8.99 s on an RTX 4090: 32 prompts of 143 tokens, 181 response tokens, PPO with a critic."""
    seen = Lengths(143, 181, expected_longest(181, 32, 1_024))
    for lengths in (seen, None):  # None: they are guessed
        step = with_bounds(step_time(QWEN_05B, config(), on("RTX 4090"), lengths).total)
        assert step.low < 8.99 < step.high
        assert step.high == 4 * step.low


def test_what_was_measured_on_an_h200_within_a_factor_of_one_and_a_half():
    """1.12 s of learning; 24,800 tokens/s with vLLM, 5,250 with hf (benchmarks/README.md)."""
    updates = config(actor={"mini_batch_size": 16, "micro_batch_tokens": 8_192})
    learn = step_time(QWEN_05B, updates, on("H200"), Lengths(145, 181, 361)).learn
    assert 1 / 1.5 < learn / 1.12 < 1.5
    for engine, tokens_per_s in (("vllm", 24_800), ("hf", 5_250)):
        asked = config(
            data={"train_batch_size": 128},
            rollout={"engine": engine, "max_num_seqs": 128},
            actor={"mini_batch_size": 128},
        )
        generate = step_time(QWEN_05B, asked, on("H200"), Lengths(145, 256, 256)).generate
        assert 1 / 1.5 < 128 * 256 / generate / tokens_per_s < 1.5


@pytest.mark.parametrize(
    ("shape", "num_cards", "prompts", "response", "published_s"),
    [(LLAMA_8B, 1, 4, 930, 97.7), (QWEN3_32B, 4, 8, 3_076, 393.0)],
    ids=["Llama 3.1 8B, 16 H100s", "Qwen3 32B, 32 H100s"],
)
def test_published_steps_of_another_program_within_a_factor_of_two(
    shape, num_cards, prompts, response, published_s
):
    """NeMo RL 0.4, GRPO on policy, 2,048 rollouts of 1,060 and 3,206 tokens, 4 updates.

    Source: github.com/NVIDIA-NeMo/RL, docs/about/performance-summary.md. Here the share of one
    engine: a card, or four with the weights split over them; groups of 32, prompts of about 130.
    """
    share = config(
        env={"name": "gsm8k"},
        algorithm={"estimator": "grpo", "group_size": 32, "kl_mode": "loss", "kl_estimator": "k2"},
        data={"train_batch_size": prompts, "max_prompt_length": 512, "max_response_length": 3_584},
        actor={"mini_batch_size": prompts // 4, "micro_batch_tokens": 4_096},
    )
    card = on("H100")
    rates = (card.learner_flops, card.engine_flops, card.bandwidth)
    cards = Machine("H100s", True, *(num_cards * rate for rate in rates))
    seen = Lengths(130, response, expected_longest(response, 32 * prompts, 3_584))
    assert 0.5 < step_time(shape, share, cards, seen).total / published_s < 2


def test_operations_are_those_that_utilisation_counts():
    """`phases.training_flops` is checked against torch's own counter."""
    lengths = Lengths(5, 7, 7)
    prompts, responses = torch.tensor([5] * 3), torch.tensor([7] * 3)
    for has_head in (True, False):
        ours = forward_flops(TINY, 3, lengths, num_prompts=3, has_head=has_head)
        counted = training_flops(TINY, prompts, responses, has_head=has_head)
        assert 3 * ours == pytest.approx(counted)
    # A group's prompt once: two of three are not computed, but all rows attend to it.
    grouped = forward_flops(TINY, 3, lengths, num_prompts=1, has_head=False)
    spared = 2 * TINY.num_layers * TINY_LAYER * 2 * 5
    assert TINY.num_layer_parameters == TINY_LAYER
    assert forward_flops(TINY, 3, lengths, num_prompts=3, has_head=False) - grouped == spared


def test_generation_by_hand():
    """Rows of 1 and 5 tokens after prompts of 2, in bfloat16, on a device of 1 kB/s."""
    settings = config(
        data={"train_batch_size": 2}, actor={"mini_batch_size": 2}, algorithm={"kl_mode": "none"}
    )
    slow_memory = by_hand(bandwidth=1e3)
    lengths = Lengths(2, 3, 5)
    parameters = 10 * 4 + 2 * TINY_LAYER + 4
    # The longest's five decoding steps read all weights. A token's key and value: 2 layers x 2 x 2
    # numbers; 2 rows x 3 tokens read 3.5 of them each.
    weights, cache = 5 * 2 * parameters, 2 * 2 * 2 * 2 * (2 * 3 * 3.5)
    step = step_time(TINY, settings, slow_memory, lengths, PERFECT)
    assert step.generate == pytest.approx((weights + cache) / 1e3)
    # The device's arithmetic bounds it instead: 6 tokens through layers and head, 4 of prompts.
    slow_units = by_hand(engine=1e3)
    flops = 2 * 6 * (2 * TINY_LAYER + 10 * 4)
    prefill = 2 * 4 * 2 * TINY_LAYER + 2 * 2 * 4 * 2 * 2**2
    generate = step_time(TINY, settings, slow_units, lengths, PERFECT).generate
    assert generate == pytest.approx((flops + prefill) / 1e3)


def test_the_learner_computes_what_its_settings_ask_for():
    machine, lengths = by_hand(learner=1e3), Lengths(2, 3, 3)

    def learn(**changes: object) -> float:
        one = {"data": {"train_batch_size": 2}, "actor": {"mini_batch_size": 2}}
        return step_time(TINY, config(**(one | changes)), machine, lengths, PERFECT).learn

    actor = forward_flops(TINY, 2, lengths, num_prompts=2, has_head=True) / 1e3
    critic = forward_flops(TINY, 2, lengths, num_prompts=2, has_head=False) / 1e3
    none, adapters = {"kl_mode": "none"}, {"dtype": "bfloat16", "lora_rank": 2}
    again = {"dtype": "bfloat16", "gradient_checkpointing": True}
    # Old log-probs and the reference's; an update is three passes, the only one's values are those.
    assert learn() == pytest.approx(5 * actor + 3 * critic, rel=1e-6)
    half = {"mini_batch_size": 1}
    assert learn(actor=half) == pytest.approx(5 * actor + 4 * critic, rel=1e-6)
    # The only update's own log-probs are the old ones.
    assert learn(algorithm=none) == pytest.approx(3 * actor + 3 * critic, rel=1e-6)
    assert learn(algorithm=none, model=again) == pytest.approx(4 * actor + 4 * critic, rel=1e-6)
    assert learn(algorithm=none, model=adapters) == pytest.approx(2 * actor + 2 * critic, rel=1e-6)
    # A teacher that is not on this machine counts as one of the policy's size.
    taught = learn(algorithm=none, teacher={"path": "strong/best"})
    assert taught == pytest.approx(4 * actor + 3 * critic, rel=1e-6)


@pytest.mark.parametrize(("updates", "ranks"), [(1, 1), (2, 1), (2, 2)])
def test_offloaded_moments_cross_the_link_twice_per_update(updates, ranks):
    machine, lengths = by_hand(learner=1e3, engine=1e3), Lengths(2, 3, 3)

    def learn(offload: bool) -> float:
        settings = config(
            data={"train_batch_size": 4},
            actor={"mini_batch_size": 4 // updates},
            algorithm={"estimator": "reinforce_plus_plus"},
            resources={"learner_gpus": 1, "learner_ranks": ranks, "offload": offload},
        )
        return step_time(TINY, settings, machine, lengths, PERFECT).learn

    there_and_back = 2 * updates * 8 * TINY.num_parameters / ranks / 3e9
    assert learn(True) - learn(False) == pytest.approx(there_and_back, rel=1e-6)


def test_responses_beyond_those_that_run_at_a_time_wait():
    lengths = Lengths(10, 50, 200)
    assert decoding_steps(64, lengths, 64) == 200
    assert decoding_steps(192, lengths, 64) == 200 + 128 * 50 / 64


def test_the_longest_of_many_is_cut_at_the_limit():
    draws = torch.distributions.Exponential(1 / 50.0).sample((4_000, 32)).amax(dim=1).mean()
    assert expected_longest(50, 32, 1_024) == pytest.approx(float(draws), rel=0.05)
    assert expected_longest(50, 32, 128) == 128
    assert expected_longest(50, 1, 1_024) == 50


def test_usual_lengths_are_a_third_of_the_longest_for_searches_else_256():
    named = {"path": "Qwen/Qwen2.5-0.5B"}
    usual = guess_lengths(config(model=named, data={"train_batch_size": 32}))
    assert (usual.prompt, usual.response) == (128, 256)
    small = {"train_batch_size": 32, "max_response_length": 129}
    assert guess_lengths(config(model=named, data=small)).response == 129
    home_made = guess_lengths(config(data={"max_response_length": 129}))
    assert home_made.response == pytest.approx(43)
    shown = config(model=named, data={"max_response_length": 129}, sft={"data": "traces"})
    assert guess_lengths(shown) == home_made
    rows = config(model=named, data={"max_response_length": 129}, sft={"data": "x.jsonl"})
    assert guess_lengths(rows).response == 129


def test_more_work_never_takes_less():
    machine = on("RTX 4090")
    base = step_time(QWEN_05B, config(), machine).total
    double = config(data={"train_batch_size": 64})
    assert base < step_time(QWEN_05B, double, machine).total < 2 * base
    # On one card they take turns though the rollouts may be a step ahead.
    shared = config(rollout={"staleness": 1})
    step = step_time(QWEN_05B, shared, machine, Lengths(143, 181, 735))
    assert step.total == pytest.approx(step.generate + step.learn + step.sync + step.other)


def test_a_step_of_sft_is_three_passes_over_its_batch_and_adapters_save_one():
    machine = by_hand(learner=1e3)

    def seconds(batch_size: int, **model: object) -> float:
        sft = {"data": "traces", "batch_size": batch_size}
        model = {"path": "x/y", "dtype": "bfloat16", **model}
        return sft_step_s(TINY, config(sft=sft, model=model), machine)

    usual = guess_lengths(config(model={"path": "x/y"}, sft={"data": "traces"}))
    forward = forward_flops(TINY, 8, usual, num_prompts=8, has_head=True)
    per_flop = seconds(8) / (3 * forward)
    assert seconds(16) == pytest.approx(2 * seconds(8), rel=1e-3)
    assert seconds(8, lora_rank=2) == pytest.approx(2 * forward * per_flop, rel=1e-3)
    again = seconds(8, gradient_checkpointing=True)
    assert again == pytest.approx(4 * forward * per_flop, rel=1e-3)


def test_a_step_on_two_ranks_and_two_engines_by_hand():
    """1,000 bytes and 1,000 operations a second; 4 prompts of 2 tokens, 3 tokens of response."""
    settings = config(
        data={"train_batch_size": 4},
        actor={"mini_batch_size": 4, "micro_batch_tokens": 8_192},
        algorithm={"estimator": "reinforce_plus_plus", "kl_mode": "none"},
        rollout={"num_engines": 2, "max_num_seqs": 2, "staleness": 1},
        resources={"learner_ranks": 2, "learner_gpus": 1, "rollout_gpus": 1},
    )
    lengths = Lengths(2, 3, 3)
    step = step_time(TINY, settings, by_hand(learner=2e3, bandwidth=1e3), lengths, PERFECT)
    weights = TINY.num_parameters
    # Two rows on each engine: three decoding steps read the weights, 6 tokens 3.5 keys and values.
    read = 3 * 2 * weights + 2 * 2 * 2 * 2 * (2 * 3 * 3.5)
    assert step.generate == pytest.approx(read / 1e3)
    # One update of three passes, whose own log-probs are the old ones; AdamW, a half on each rank.
    passes = 3 * forward_flops(TINY, 4, lengths, num_prompts=4, has_head=True) / 2e3
    adam = 7 * 4 * weights / 1e3 / 2
    assert step.learn == pytest.approx(passes + adam)
    assert step.sync == pytest.approx(2 * 2 * weights / 3e9)
    assert step.is_ahead
    assert step.total == pytest.approx(max(step.generate, step.learn) + step.sync)


def test_groups_that_are_replaced_are_generated_too():
    def generate(num_prompts: int, rounds: int) -> float:
        algorithm = {"estimator": "grpo", "group_size": 8, "resample_rounds": rounds}
        data = {"train_batch_size": num_prompts}
        settings = config(data=data, algorithm=algorithm, actor={"mini_batch_size": 1})
        return step_time(QWEN_05B, settings, on("H200"), Lengths(145, 181, 500)).generate

    assert generate(32, 1) == pytest.approx(generate(32, 0) + generate(16, 0))
    assert generate(4, 9) == pytest.approx(sum(generate(n, 0) for n in (4, 2, 1)))


def test_a_test_has_all_its_samples():
    def seconds(samples: int, **evaluation: object) -> float:
        settings = config(evaluation={"samples_per_problem": samples, **evaluation})
        return roofline.test_s(QWEN_05B, settings, on("H200"))

    assert seconds(1) == seconds(64)  # greedy: they are not of the tests
    sampled = [seconds(n, decoding="sampled") for n in (1, 16, 64)]
    assert sampled[0] == seconds(1)
    assert 8 < sampled[1] / sampled[0] <= 16
    assert 3.5 < sampled[2] / sampled[1] <= 4
