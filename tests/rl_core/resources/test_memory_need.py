from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.resources.memory_need import (
    beside_cards,
    card_need,
    learner_peak,
    least_engine_gib,
    machine_need,
    starves_engine,
)
from rl_core.resources.memory_plan import ModelShape, memory_plan, resting_learner
from tests.support import model_shapes
from tests.support.runs import merged, run_config

QWEN = ModelShape.from_config(model_shapes.QWEN_05B)
GIB = 2**30
NUM_WEIGHTS = 494_032_768
NEW_WEIGHTS = 2 * NUM_WEIGHTS / GIB
"""All weights in bfloat16."""
LEARNER, VLLM, HF = 0.5, 1.1, 0.4
"""Of such processes, beside what they hold of a model."""
BESIDE = 0.4 + 0.35 + 0.65
"""The trainer, Ray's own, and the flow with Prefect's server."""


def tinyzero(**sections: dict[str, Any]) -> RunConfig:
    """Actor, critic and reference of Qwen2.5-0.5B beside an engine with a fifth of 24 GiB."""
    settings = {
        "model": {"dtype": "bfloat16", "gradient_checkpointing": True},
        "rollout": {"gpu_memory_utilization": 0.2},
        "resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5, "gpu_memory_gib": 24},
    }
    return run_config(**merged(settings, sections))


def peak_gib(config: RunConfig) -> float:
    return learner_peak(memory_plan(QWEN, config)).total_bytes / GIB


def test_all_that_share_a_card_are_added_up_where_nobody_sleeps():
    config = tinyzero()
    (moment,) = card_need(QWEN, config, 24).moments
    assert moment.total_gib == pytest.approx(peak_gib(config) + 4.8 + NEW_WEIGHTS + 2 * 0.5)
    two = tinyzero(rollout={"num_engines": 2}, resources={"rollout_gpus": 0.25})
    both = peak_gib(two) + 2 * (4.8 + NEW_WEIGHTS) + 3 * 0.5
    assert card_need(QWEN, two, 24).total_gib == pytest.approx(both)


@pytest.mark.parametrize(
    ("offload", "bytes_per_weight"),
    # Weights of three models and the moments of two; offloaded, the weights of two.
    [(False, 3 * 4 + 2 * 8), (True, 2 * 4)],
)
def test_an_engine_that_sleeps_takes_turns_with_the_learner(offload, bytes_per_weight):
    config = tinyzero(rollout={"sleep": True}, resources={"offload": offload})
    works, rests = card_need(QWEN, config, 24).moments
    # 1 GiB stays with vLLM, and half a GiB with each of two processes.
    assert works.total_gib == pytest.approx(peak_gib(config) + 1 + 2 * 0.5)
    resting = bytes_per_weight * NUM_WEIGHTS / GIB
    assert rests.total_gib == pytest.approx(resting + 4.8 + NEW_WEIGHTS + 2 * 0.5, abs=1e-4)
    total = card_need(QWEN, config, 24).total_gib
    assert total == max(works.total_gib, rests.total_gib)
    awake = tinyzero(resources={"offload": offload})
    assert total < card_need(QWEN, awake, 24).total_gib


def test_the_fullest_of_two_cards_counts():
    # Two engines on one card, 0.45 of it each; the learner has the other to itself.
    config = tinyzero(
        rollout={"num_engines": 2, "gpu_memory_utilization": 0.45}, model={"lora_rank": 16}
    )
    engines = 2 * (0.45 * 24 + NEW_WEIGHTS + 0.5)
    assert card_need(QWEN, config, 24).total_gib == pytest.approx(engines)


def test_a_share_must_hold_the_model_and_one_response():
    # 24 layers x 2 (keys, values) x 2 heads x 64 x 2 bytes are 12,288 per token, of 1,280 tokens.
    least = (2 * NUM_WEIGHTS + 1_280 * 12_288) / GIB + 1
    assert least_engine_gib(QWEN, tinyzero()) == pytest.approx(least)
    share = least / 24
    for factor, starves in ((0.99, True), (1.01, False)):
        config = tinyzero(rollout={"gpu_memory_utilization": factor * share})
        assert starves_engine(QWEN, config, 24) is starves
    assert not starves_engine(QWEN, RunConfig(), 24)  # a CPU's engine has a cache of a set size


@pytest.mark.parametrize(("staleness", "num_versions"), [(0, 1), (1, 2)])
def test_with_adapters_the_fullest_moment_is_when_new_weights_go_to_the_engine(
    staleness, num_versions
):
    config = run_config(
        rollout={"staleness": staleness},
        model={"lora_rank": 64, "dtype": "bfloat16", "gradient_checkpointing": True},
        algorithm={"estimator": "grpo", "group_size": 4},
        data={"train_batch_size": 1, "max_prompt_length": 64, "max_response_length": 64},
        actor={"mini_batch_size": 1, "micro_batch_tokens": 512},
    )
    engine, version = memory_plan(QWEN, config)[-1], 2 * NUM_WEIGHTS
    # What the learner sends; an engine that generates ahead keeps those of before in Ray, too.
    rests = resting_learner(QWEN, config).total_bytes
    held = rests + version + (engine.total_bytes - version) + num_versions * version
    need = machine_need(QWEN, config)
    assert need.total_gib == pytest.approx(held / GIB + LEARNER + VLLM + BESIDE)
    assert "learner (sync)" in str(need)
    updates = peak_gib(config) + engine.total_bytes / GIB
    assert need.total_gib > updates + LEARNER + VLLM + BESIDE


def test_a_split_engine_has_its_part_on_each_card_and_on_a_cpu_processes():
    cards = {"learner_gpus": 1, "rollout_gpus": 1}
    whole, split = (
        tinyzero(rollout={"tensor_parallel_size": parts}, resources=cards) for parts in (1, 2)
    )
    for name, num_bytes in memory_plan(QWEN, whole)[-1].parts.items():
        assert memory_plan(QWEN, split)[-1].parts[name] == num_bytes / 2
    itself = 1.0
    assert least_engine_gib(QWEN, split) - itself == pytest.approx(
        (least_engine_gib(QWEN, whole) - itself) / 2
    )
    on_cpu = run_config(rollout={"tensor_parallel_size": 2})
    engine = memory_plan(QWEN, on_cpu)[-1]
    # The learner, the engine and its two parts; each part is handed all new weights.
    needed = peak_gib(on_cpu) + engine.total_bytes / GIB + LEARNER + 3 * VLLM + BESIDE
    handed = engine.parts["incoming_weights"] / GIB
    assert machine_need(QWEN, on_cpu).total_gib == pytest.approx(needed + handed)


def test_a_machine_holds_all_ranks_and_engines_and_their_processes():
    config = run_config(resources={"learner_ranks": 3}, rollout={"num_engines": 2})
    *phases, engine = memory_plan(QWEN, config)
    first = max(phases, key=lambda phase: phase.total_bytes)
    alone, *_ = memory_plan(QWEN, RunConfig())
    assert first.parts["snapshot"] == pytest.approx(alone.parts["snapshot"] / 3, rel=1e-6)
    # Both engines read new weights where Ray holds them.
    engines = 2 * engine.total_bytes - engine.parts["incoming_weights"]
    needed = (3 * first.total_bytes + engines) / GIB + 3 * LEARNER + 2 * VLLM + BESIDE
    assert machine_need(QWEN, config).total_gib == pytest.approx(needed)
    assert f"3 learner ranks ({first.phase})" in str(machine_need(QWEN, config))


def test_an_engine_of_transformers_is_planned_for_what_is_asked_of_it():
    sections = {
        "rollout": {"engine": "hf", "max_num_seqs": 256},
        "data": {"train_batch_size": 6, "max_prompt_length": 100, "max_response_length": 50},
        "algorithm": {"estimator": "grpo", "group_size": 4},
        "actor": {"mini_batch_size": 6},
        "trainer": {"test_problems": 5},
    }

    def parts(**changes: dict[str, Any]) -> Any:
        return memory_plan(QWEN, run_config(**merged(sections, changes)))[-1].parts

    # Keys and values of 24 layers, 2 heads of 64; prompts are read once for each group.
    assert parts()["kv_cache"] == 24 * 150 * (2 * 24 * 2 * 64 * 4)
    assert parts()["activations"] == 6 * 100 * 4 * 4 * (4_864 + 896)
    tests = parts(trainer={"test_problems": 30})  # more than a step asks, each another prompt
    assert tests["kv_cache"] == 30 * parts()["kv_cache"] / 24
    assert tests["activations"] == 30 * parts()["activations"] / 6
    assert parts(rollout={"max_num_seqs": 8})["kv_cache"] == parts()["kv_cache"] / 3
    assert parts(rollout={"num_engines": 2})["kv_cache"] == parts()["kv_cache"] / 2
    # During an update it holds nothing, unless it generates the next step's responses.
    for staleness, held in ((0, parts()["incoming_weights"]), (1, sum(parts().values()))):
        config = run_config(**merged(sections, {"rollout": {"staleness": staleness}}))
        needed = peak_gib(config) + held / GIB + LEARNER + HF + BESIDE
        assert machine_need(QWEN, config).total_gib == pytest.approx(needed)


def test_what_a_card_does_not_hold_lies_in_the_machines_memory():
    offloading = tinyzero(resources={"offload": True})
    need = beside_cards(QWEN, offloading)
    # The reference, and both moments of actor and critic; of these weights too there is a copy.
    both, head = 2 * NUM_WEIGHTS, 896 + 1
    assert need.parts["offloaded"] == pytest.approx((4 * NUM_WEIGHTS + 8 * (both + head)) / GIB)
    assert need.parts["snapshot"] == pytest.approx(12 * (both + head) / GIB)
    assert need.parts["weights on their way"] == pytest.approx(2 * NEW_WEIGHTS)
    rest = LEARNER + VLLM + BESIDE
    named = sum(need.parts[x] for x in ("offloaded", "snapshot", "weights on their way"))
    assert need.total_gib == pytest.approx(named + rest)
    plain = tinyzero(checkpoints={"in_background": False})
    assert beside_cards(QWEN, plain).total_gib == pytest.approx(2 * NEW_WEIGHTS + rest)
