import pytest

from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.resources.disk_plan import DiskPlan, checkpoint_bytes, disk_plan
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.model_shape import known_shape
from tests.support.solving import let_countdown_answer

SHAPE = known_shape("Qwen/Qwen2.5-0.5B")
GRPO = {"estimator": "grpo", "group_size": 4}


ADAPTERS = {"model": {"lora_rank": 4}}


@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm": GRPO}, ADAPTERS, ADAPTERS | {"checkpoints": {"merged": "all"}}],
)
def test_a_checkpoint_is_as_large_as_planned(tmp_path, tiny_model_path, changes):
    config = RunConfig.model_validate({"resources": {"learner_threads": 1}, **changes})
    learner = Learner(config, tiny_model_path)
    for optimizer in learner.optimizers.values():
        for parameter in optimizer.parameters:  # Adam's moments are there after a first update
            parameter.grad = parameter.detach() * 0
        optimizer.step(optimizer.clip())
    learner.save(tmp_path / "saved")
    written = sum(f.stat().st_size for f in (tmp_path / "saved").rglob("*") if f.is_file())
    planned = checkpoint_bytes(ModelShape.from_folder(tiny_model_path), config)
    fixed = 2**20  # allowed for the tokenizer and the like
    assert planned - fixed < written <= planned


def test_what_stays_is_held_by_the_quota_but_never_below_two():
    one = checkpoint_bytes(SHAPE, RunConfig())
    # By hand: 494,032,768 weights and a critic with one number more per hidden unit, 3 floats each.
    assert one == pytest.approx(4 * 3 * (2 * 494_032_768 + 897), rel=1e-3)
    wide, tight = ({"checkpoints": {"quota_bytes": n * one}} for n in (10, 1))
    assert disk_plan(SHAPE, RunConfig.model_validate(wide), 1_000).kept_bytes == 4 * one
    assert disk_plan(SHAPE, RunConfig.model_validate(tight), 1_000).kept_bytes == 3 * one
    assert disk_plan(SHAPE, RunConfig.model_validate(wide), 100).kept_bytes == one


def test_adapters_are_small_until_the_latest_and_the_best_are_merged_at_the_end():
    shape = known_shape("Qwen/Qwen2.5-1.5B")
    sections = {"algorithm": GRPO, "model": {"lora_rank": 64}}

    def plan(**kept: object) -> DiskPlan:
        return disk_plan(shape, RunConfig.model_validate(sections | {"checkpoints": kept}), 1_000)

    # By hand: 73,859,072 numbers of adapters and their two moments; 1,543,714,304 weights.
    small, merged = 12 * 73_859_072 + 2**20, 4 * 1_543_714_304
    assert plan().checkpoint_bytes == small
    assert plan().kept_bytes == 4 * small + 2 * (merged + 2**20)
    assert plan(merged="none").kept_bytes == 4 * small
    assert plan(merged="all", quota_bytes=10**12).kept_bytes == 4 * (small + merged)
    sections["model"]["load_in_4bit"] = True
    assert plan().checkpoint_bytes == small + merged


def test_logs_are_counted_and_old_rollouts_are_not():
    plan = disk_plan(SHAPE, RunConfig(), 1_000)
    # By hand: 256 rows of 64 + 2 * 1,024 bytes, 3,000 of metrics, and at steps 0, 100, ..., 1,000
    # a file of 10,000 with the answers to 128 problems.
    test = 10_000 + 128 * 2_112
    assert plan.step_bytes == 256 * 2_112 + 3_000 + test // 100
    assert plan.logs_bytes == 1_000 * (256 * 2_112 + 3_000) + 11 * test
    storage = {"rollout_quota_bytes": 10**8}
    aged = disk_plan(SHAPE, RunConfig.model_validate({"storage": storage}), 1_000)
    assert aged.logs_bytes == 1_000 * 3_000 + 10**8 + 11 * test
    few = RunConfig.model_validate({"storage": storage, "trainer": {"test_problems": 16}})
    fewer = disk_plan(SHAPE, few, 1_000)
    assert fewer.logs_bytes == 1_000 * 3_000 + 10**8 + 11 * (10_000 + 16 * 2_112)


def test_the_step_at_which_the_disk_is_full():
    plan = DiskPlan(checkpoint_bytes=100, kept_bytes=300, step_bytes=10, logs_bytes=500)
    assert plan.total_bytes == 800
    assert plan.fills_at(800) is None
    assert plan.fills_at(799) == 49
    assert plan.fills_at(310) == 1
    assert plan.fills_at(299) == 0


def test_turns_are_written_once_more_each_with_its_numbers(monkeypatch):
    let_countdown_answer(monkeypatch)

    def per_row(max_turns: int) -> int:
        env, data = {"name": "countdown", "max_turns": max_turns}, {"max_response_length": 100}
        config = RunConfig.model_validate({"env": env, "data": data})
        metrics_and_test = 3_000 + (10_000 + 128 * (64 + 2 * 100)) // 100
        return (disk_plan(SHAPE, config, 100).step_bytes - metrics_and_test) // 256

    assert per_row(1) == 64 + 2 * 100
    # The model's four turns, and the env's three between them, of 4 bytes each.
    assert per_row(4) == 64 + 2 * 100 + 2 * 100 + 4 * 7
