"""A teacher in the memory plan: its weights, of its own shape."""

import json

from rl_core.resources.memory_plan import ModelShape, memory_plan, offloaded_bytes
from tests.support.model_shapes import QWEN_05B


def test_a_teachers_weights_are_planned_by_its_own_shape(settings, tmp_path):
    shape, teacher = ModelShape.from_config(QWEN_05B), QWEN_05B | {"num_hidden_layers": 48}
    (tmp_path / "config.json").write_text(json.dumps(teacher))
    more = 4 * ModelShape.from_config(teacher).num_parameters
    resources = {"learner_gpus": 1, "rollout_gpus": 1, "offload": False}
    for path, expected in ((tmp_path, more), ("OWNER/NAME", 4 * shape.num_parameters)):
        plain, taught = (
            settings(teacher={"path": one}, resources=resources) for one in (None, str(path))
        )
        for before, after in zip(
            memory_plan(shape, plain)[:-1], memory_plan(shape, taught)[:-1], strict=True
        ):
            assert after.parts["weights"] - before.parts["weights"] == expected
    away = settings(teacher={"path": str(tmp_path)}, resources=resources | {"offload": True})
    phases = {phase.phase: phase.parts for phase in memory_plan(shape, away)}
    # One after the other: the reference is smaller, and only one of them is on the card.
    in_pass = phases["log_probs"]["weights"] - phases["update_actor"]["weights"]
    assert in_pass == more
    kept = settings(resources=resources | {"offload": True})
    assert offloaded_bytes(shape, away) - offloaded_bytes(shape, kept) == more


def test_the_full_signal_keeps_the_teachers_states(settings):
    shape = ModelShape.from_config(QWEN_05B)
    teacher = {"path": "OWNER/NAME", "signal": "full"}
    data = {"train_batch_size": 8, "max_response_length": 100}
    config = settings(teacher=teacher, data=data, algorithm={"group_size": 4})
    for phase in memory_plan(shape, config)[:-1]:
        assert phase.parts["teacher_states"] == 8 * 4 * 100 * QWEN_05B["hidden_size"] * 4
