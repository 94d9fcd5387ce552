"""A driver that is stopped or killed leaves no process of its Ray behind."""

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rl_core.workers.test_cluster import ZERO_COPY
from tests.support.programs import begun, command_lines, living
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 90
"""Two or three seconds as a rule; but an agent of Ray's may try for 60 to tell a dead server."""

DRIVER = """
    import signal
    import sys
    from pathlib import Path

    from rl_core.config.rollout import RolloutConfig
    from rl_core.config.run import DataConfig, RunConfig
    from rl_core.types import GenerationRequest, SamplingSettings
    from rl_core.workers.cluster import Workers

    class Cancelled(BaseException):
        pass

    def cancel(number, frame):
        raise Cancelled

    if sys.argv[2] == "own handler":
        signal.signal(signal.SIGTERM, cancel)
    config = RunConfig(
        data=DataConfig(max_prompt_length=64, max_response_length=900),
        rollout=RolloutConfig(engine="hf"),
    )
    try:
        with Workers.start(config, Path(sys.argv[1]), learner=False) as workers:
            print("generating", flush=True)
            requests = [GenerationRequest((5, 6, 7), seed) for seed in range(256)]
            while True:
                workers.engines.generate(requests, SamplingSettings(900, 1.0))
    except Cancelled:
        sys.exit(7)
"""


@pytest.fixture
def short_temp_dir() -> Iterator[str]:
    """Removed even after a SIGKILL, which leaves Ray's folder; pytest's own is too long for it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def driver_process(model: Path, handler: str, temp_dir: str) -> Iterator[tuple[Any, str]]:
    """Runs DRIVER; yields the process, and the marker that all its descendants inherit."""
    value = uuid.uuid4().hex
    variables = {"TEST_DRIVER_MARKER": value, "TMPDIR": temp_dir, "PYTHONPATH": str(Path.cwd())}
    options = {"stderr": subprocess.DEVNULL, "start_new_session": True}
    with begun(DRIVER, model, handler, more=variables, **options) as driver:
        yield driver, value


def has_torch(process: psutil.Process) -> bool:
    return any("libtorch" in Path(mapped.path).name for mapped in process.memory_maps())


def wait_until_none_is_left(value: str, *, deadline: float) -> None:
    while left := living("TEST_DRIVER_MARKER", value):
        assert time.monotonic() < deadline, [" ".join(p.cmdline()) for p in left]
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("handler", "number", "expected_code"),
    [
        ("default", signal.SIGTERM, 128 + signal.SIGTERM),
        ("default", signal.SIGINT, -signal.SIGINT),
        ("default", signal.SIGKILL, -signal.SIGKILL),
        ("own handler", signal.SIGTERM, 7),  # as Prefect's, which cancels a flow run
    ],
)
def test_a_signal_in_mid_generation_leaves_no_process(
    handler, number, expected_code, tiny_model_path, short_temp_dir
):
    with driver_process(tiny_model_path, handler, short_temp_dir) as (driver, value):
        assert driver.stdout.readline() == "generating\n"
        of_run = living("TEST_DRIVER_MARKER", value)
        assert len(of_run) > 3
        lines = command_lines(of_run)
        (engine,) = (process for process, line in lines.items() if "ray::RolloutActor" in line)
        worked_s = engine.cpu_times().user
        wait_for(lambda: engine.cpu_times().user > worked_s + 0.1)
        assert engine.environ()[ZERO_COPY] == "1"
        assert [has_torch(process) for process in (psutil.Process(driver.pid), engine)] == [0, 1]
        if number == signal.SIGINT:
            os.killpg(driver.pid, number)  # to the whole group, as a terminal's Ctrl-C does
        else:
            driver.send_signal(number)
        deadline = time.monotonic() + GONE_WITHIN_S
        assert driver.wait(timeout=300) == expected_code
        wait_until_none_is_left(value, deadline=deadline)


def test_a_sigterm_while_ray_starts_reaches_our_own_handler(tiny_model_path, short_temp_dir):
    with driver_process(tiny_model_path, "own handler", short_temp_dir) as (driver, value):
        wait_for(  # Ray's first process
            lambda: len(living("TEST_DRIVER_MARKER", value)) > 1, process=driver, poll_s=0.05
        )
        driver.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GONE_WITHIN_S
        assert driver.wait(timeout=300) == 7
        wait_until_none_is_left(value, deadline=deadline)
