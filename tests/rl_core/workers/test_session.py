"""Connecting to a Ray by way of its client, whose server does not always come up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from rl_core.config.run import ResourcesConfig, RunConfig
from rl_core.errors import WorkerDied
from rl_core.workers.session import ray_session

CONFIG = RunConfig(resources=ResourcesConfig(ray_address="ray://127.0.0.1:10001"))
DEAD = """Initialization failure from server:
Traceback (most recent call last):
  File "ray/util/client/server/proxier.py", line 772, in Datapath
    raise RuntimeError(
RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.
"""


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What each try to connect ends with, the next one last."""
    ends: list[Exception | None] = []

    def connect(**options: Any) -> None:
        if (error := ends.pop()) is not None:
            raise error

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(ray, "init", connect)
    return ends


def test_a_dead_server_of_rays_client_is_asked_for_again(
    tries: list[Exception | None], tmp_path: Path
) -> None:
    tries += [None, ConnectionAbortedError(DEAD), ConnectionAbortedError(DEAD)]
    with ray_session(CONFIG, tmp_path, None, learner=True):
        assert tries == []
    tries += [ConnectionAbortedError(DEAD)] * 9
    with (
        pytest.raises(WorkerDied, match=r"it did not start .*Starting Ray client server failed"),
        ray_session(CONFIG, tmp_path, None, learner=True),
    ):
        pass
    assert len(tries) == 4


def test_what_another_try_would_not_mend_is_told_at_once(
    tries: list[Exception | None], tmp_path: Path
) -> None:
    tries += [None, ConnectionError("ray client connection timeout")]
    with (
        pytest.raises(WorkerDied, match="connection timeout"),
        ray_session(CONFIG, tmp_path, None, learner=True),
    ):
        pass
    assert tries == [None]
