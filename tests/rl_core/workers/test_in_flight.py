"""Engines that take weights, end steps and die while another thread streams from them."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from rl_core.config.run import RunConfig
from rl_core.rollout.protocol import in_order
from rl_core.types import Completion
from rl_core.workers.cluster import Workers
from tests.conftest import build_tiny_model
from tests.rl_core.workers.test_engines import (
    REQUESTS,
    SAMPLED,
    answers_of,
    check_same,
    kill_one,
    with_engines,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


def test_weights_and_deaths_in_mid_stream_lose_no_response_and_no_count_of_updates(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    build_tiny_model(tmp_path / "other", seed=1)
    plain = with_engines(2, "hf").model_dump()
    config = RunConfig.model_validate(plain | {"rollout": plain["rollout"] | {"staleness": 2}})
    many = REQUESTS * 12
    answered: list[tuple[int, Completion]] = []
    with Workers.start(config, tiny_model_path, learner=False) as workers:
        engines = workers.engines
        engines.set_policy_version(4)

        def collect() -> None:
            answered.extend(engines.stream(many, SAMPLED))

        collecting = threading.Thread(target=collect)
        collecting.start()
        wait_for(lambda: len(answered) > 0)
        engines.set_weights(tmp_path / "other", 5)
        kill_one(random.Random(3))
        restarts = engines.end_step()["rollout/engine_restarts"]
        engines.set_weights(tiny_model_path, 6)
        collecting.join()
        check_same(in_order(engines.stream(REQUESTS, SAMPLED)), answers_of(tiny_model_path))
        restarts += engines.end_step()["rollout/engine_restarts"]
        closed = engines
    assert sorted(position for position, _ in answered) == list(range(len(many)))
    seen = [[policy for policy, _ in c.policy_runs] for _, c in answered]
    assert all(policies == sorted(set(policies)) for policies in seen)
    assert {policy for policies in seen for policy in policies} == {4, 5, 6}
    assert max(len(policies) for policies in seen) > 1
    assert all(tokens > 0 for _, c in answered for _, tokens in c.policy_runs)
    assert restarts == 1
    with pytest.raises(RuntimeError, match="the run has ended"):
        list(closed.stream(REQUESTS, SAMPLED))
