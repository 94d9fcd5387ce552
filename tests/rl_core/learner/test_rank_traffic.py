"""What two real ranks send each other in a step, against what is counted."""

from typing import Any

import pytest

from rl_core.resources.memory_plan import ModelShape
from tests.support.harness import benchmark
from tests.support.rank_processes import on_ranks
from tests.support.rank_work import count_bytes

AT_ONCE = {"micro_batch_tokens": 1_000}
VARIANTS: tuple[dict[str, dict[str, Any]], ...] = (
    {},
    {"model": {"lora_rank": 4}},
    {"actor": {"mini_batch_size": 8}, "algorithm": {"kl_mode": "none"}},
)


@pytest.mark.slow
def test_a_steps_collectives_move_the_bytes_that_are_counted(tiny_model_path, settings, make_batch):
    configs, batch = (
        [settings(**x | {"actor": AT_ONCE | x.get("actor", {})}) for x in VARIANTS],
        make_batch(),
    )
    shape = ModelShape.from_folder(tiny_model_path)
    longest = int(batch.response_lengths.max())
    for moved in on_ranks(2, count_bytes, configs, tiny_model_path, [batch] * len(configs)):
        for config, (step, handed) in zip(configs, moved, strict=True):
            counted = benchmark("cluster_model").rank_traffic(shape, config, longest)
            # FSDP pads what it cannot cut evenly.
            assert step["gathered"] == pytest.approx(counted.gathered[0], rel=0.01)
            assert step["scattered"] == pytest.approx(counted.scattered[0], rel=0.01)
            assert handed["gathered"] == pytest.approx(counted.handed[0], rel=0.02)
            # Metrics, norms, and how many passes there are.
            assert 0 <= step["summed"] - counted.summed[0] < 2_000
