from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.model import BaseModelConfig
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.oom_recovery import (
    Changes,
    in_words,
    next_recovery_step,
    recovery_steps_left,
    with_changes,
)
from tests.support import model_shapes

QWEN_05B = ModelShape.from_config(model_shapes.QWEN_05B)
TINY = ModelShape.of_base_model(BaseModelConfig())
HARMLESS = {
    *("model.gradient_checkpointing", "resources.learner_threads", "resources.offload"),
    *("checkpoints.in_background", "rollout.sleep", "rollout.gpu_memory_utilization"),
    *("rollout.kv_cache_mib", "rollout.max_num_seqs", "rollout.num_engines"),
}
SWITCHED_ON = ("model.gradient_checkpointing", "rollout.sleep", "resources.offload")
PHASES = (
    *("load_learner", "prepare", "old_log_prob", "ref", "values", "update", "update_actor"),
    *("update_critic", "weights", "save", "load_engine", "gen", "sync", "evaluate"),
    *("learner", "engine_0", "trainer"),
)
SHARED_CARD = {"learner_gpus": 0.5, "rollout_gpus": 0.5}


def config(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(sections)


def climb(
    settings: RunConfig, phase: str, shape: ModelShape | None = TINY, detail: str = "x"
) -> list[str]:
    """All steps that are taken when the same phase fails again and again."""
    taken = []
    while (step := next_recovery_step(settings, OutOfMemory(phase, detail), shape)) is not None:
        settings = with_changes(settings, [step])
        taken.append(in_words(step))
    return taken


ROLLOUTS = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(["vllm", "hf"]),
        "staleness": st.sampled_from([0, 1]),
        "num_engines": st.integers(1, 8),
        "kv_cache_mib": st.integers(16, 10**9),
        "max_num_seqs": st.integers(1, 10_000),
        "gpu_memory_utilization": st.floats(0.01, 0.99),
    }
)
RESOURCES = st.fixed_dictionaries(
    {
        "learner_gpus": st.sampled_from([0.0, 0.5, 1.0]),
        "rollout_gpus": st.sampled_from([0.0, 0.5, 1.0]),
        "gpu_memory_gib": st.sampled_from([None, 24.0, 1.0]),
        "learner_threads": st.integers(1, 64),
    }
)


@given(st.sampled_from(PHASES), st.sampled_from([None, TINY, QWEN_05B]), ROLLOUTS, RESOURCES)
def test_every_ladder_ends_and_each_step_moves_one_way_through_valid_settings(
    phase, shape, rollout, resources
):
    asked = config(rollout=rollout, resources=resources)
    settings, taken = asked, list[Changes]()
    while (step := next_recovery_step(settings, OutOfMemory(phase, "x"), shape)) is not None:
        assert step
        assert step.keys() <= HARMLESS
        assert step not in taken
        taken.append(step)
        before, settings = settings, with_changes(settings, [step])
        assert settings != before
        for name, (old, new) in step.items():
            section, field = name.split(".")
            assert getattr(getattr(before, section), field) == old
            assert getattr(getattr(settings, section), field) == new
            grows = name in SWITCHED_ON
            assert new > old if grows else new < old
        assert len(taken) < 60
    assert with_changes(asked, taken) == settings
    assert recovery_steps_left(settings, OutOfMemory(phase, "x"), shape) == []


def test_an_update_on_a_cpu_keeps_less_then_computes_less_at_a_time_then_shares_better():
    assert climb(config(rollout={"max_num_seqs": 16}), "update_actor") == [
        "model.gradient_checkpointing=true",
        "resources.learner_threads=1",
        "checkpoints.in_background=false",
        "rollout.kv_cache_mib=64 rollout.max_num_seqs=8",
        "rollout.kv_cache_mib=32",
        "rollout.kv_cache_mib=16",
    ]


def test_an_update_on_a_shared_card_takes_the_engines_memory():
    resources = {**SHARED_CARD, "gpu_memory_gib": 24}
    model = {"dtype": "bfloat16"}
    # 0.92 GiB of weights, 15 MiB of KV cache for 1,280 tokens and 1.5 GiB: 0.101 of the card.
    assert climb(config(resources=resources, model=model), "update_actor", QWEN_05B) == [
        "model.gradient_checkpointing=true",
        "rollout.sleep=true",
        "rollout.gpu_memory_utilization=0.2",
        "rollout.gpu_memory_utilization=0.101",
        "resources.offload=true",
    ]


def test_cards_of_their_own_lend_each_other_nothing():
    apart = config(resources={"learner_gpus": 1, "rollout_gpus": 1})
    saved = "model.gradient_checkpointing=true"
    assert climb(apart, "update_actor") == [saved, "resources.offload=true"]
    assert climb(apart, "ref") == ["resources.offload=true"]
    ranks = config(resources={"learner_gpus": 1, "rollout_gpus": 1, "learner_ranks": 2})
    halves = [f"actor.micro_batch_tokens={n}" for n in (8_192, 4_096, 2_048, 1_280)]
    assert climb(ranks, "ref") == [*halves, "resources.offload=true"]
    shares = [f"rollout.gpu_memory_utilization={share}" for share in (0.2, 0.1)]
    assert climb(apart, "gen") == shares


def test_a_process_killed_for_the_machines_memory_asks_nothing_of_a_card():
    saved = "model.gradient_checkpointing=true"
    assert saved in climb(config(), "learner")
    assert saved not in climb(config(resources={"learner_gpus": 1, "rollout_gpus": 1}), "learner")


def test_an_engine_whose_share_is_too_small_gets_no_smaller_one():
    said = "No available memory for the cache blocks. Try increasing gpu_memory_utilization"
    taken = climb(config(resources=SHARED_CARD), "load_engine", detail=said)
    assert taken[0] == "rollout.max_num_seqs=128"
    assert not any("utilization" in words for words in taken)


def test_a_cache_keeps_room_for_the_longest_sequences():
    # 24 layers, 2 KV heads of 64, float32: 24 KiB a token; twice 1,280 of them are 60 MiB.
    assert [w for w in climb(config(), "gen", QWEN_05B) if "kv_cache" in w] == [
        "rollout.kv_cache_mib=64 rollout.max_num_seqs=128",
        "rollout.kv_cache_mib=60 rollout.max_num_seqs=64",
    ]
    assert not any("kv_cache" in words for words in climb(config(), "gen", None))


def test_engines_share_the_machines_memory_and_are_asked_for_no_more_than_there_is():
    many = {"num_engines": 4, "engine": "hf", "max_num_seqs": 8}
    assert climb(config(rollout=many), "gen") == ["rollout.num_engines=2", "rollout.num_engines=1"]
    assert climb(config(rollout=many, resources={"rollout_gpus": 1}), "gen") == []
    batch = {"data": {"train_batch_size": 32}, "actor": {"mini_batch_size": 32}}
    few = config(**batch, rollout={"engine": "hf"})
    assert climb(few, "gen") == ["rollout.max_num_seqs=16", "rollout.max_num_seqs=8"]


def test_a_setting_that_a_person_chose_anew_is_left_alone():
    taken: list[Changes] = [
        {"rollout.kv_cache_mib": (128, 64)},
        {"rollout.kv_cache_mib": (64, 32)},
        {"rollout.sleep": (False, True)},
    ]
    card = {"resources": SHARED_CARD}
    assert with_changes(config(**card), taken).rollout.kv_cache_mib == 32
    assert with_changes(config(**card), taken).rollout.sleep
    anew = config(**card, rollout={"kv_cache_mib": 256, "staleness": 1})
    assert with_changes(anew, taken) == anew


def test_a_runs_folder_changes_only_what_a_retry_changes():
    """ATTACK: the record of somebody else's run names code, or a cluster, as if a retry had."""
    forged = {
        "algorithm.estimator": ("gae", "os:system"),
        "actor.policy_loss": ("ppo", "os:system"),
        "env.reward": (None, "os:system"),
        "resources.ray_address": (None, "10.0.0.1:6379"),
    }
    for name, change in forged.items():
        assert with_changes(RunConfig(), [{name: change}]) == RunConfig()
    kept = with_changes(RunConfig(), [forged | {"actor.micro_batch_tokens": (16_384, 8_192)}])
    assert kept.actor.micro_batch_tokens == 8_192
    assert kept.env.reward == ()
