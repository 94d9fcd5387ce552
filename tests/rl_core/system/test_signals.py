"""Real signals to a real process: what a person's Ctrl-C does to the loop."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

LOOP = """
import signal, sys, time
from rl_core.system.signals import StopSignals

def old_handler(signum, frame):
    raise RuntimeError(f"handed on {signum}")

signal.signal(signal.SIGTERM, old_handler)
try:
    with StopSignals(grace_s=GRACE) as stop:
        print("ready", flush=True)
        for step in range(1000):
            time.sleep(STEP)
            if stop.requested():
                print("saved", flush=True)
                break
except (RuntimeError, KeyboardInterrupt) as error:
    print(type(error).__name__, error, flush=True)
assert signal.getsignal(signal.SIGTERM) is old_handler
"""


def run_loop(
    signals: list[int], *, grace: float, step: float, before: Callable[[], object] | None = None
) -> list[str]:
    code = LOOP.replace("GRACE", str(grace)).replace("STEP", str(step))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for signum in signals:
        process.send_signal(signum)
        time.sleep(0.2)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return [line.strip() for line in output.splitlines()]


@pytest.mark.parametrize(
    ("signum", "raised"), [(15, "RuntimeError handed on 15"), (2, "KeyboardInterrupt")]
)
def test_the_step_is_finished_and_saved_before_the_signal_is_handed_on(signum, raised):
    assert run_loop([signum], grace=10, step=0.3) == ["saved", raised]


def test_a_step_longer_than_the_grace_is_abandoned():
    assert run_loop([15], grace=0.3, step=30) == ["RuntimeError handed on 15"]


def test_a_second_ctrl_c_does_not_wait():
    assert run_loop([2, 2], grace=30, step=30) == ["KeyboardInterrupt"]


def test_a_background_process_keeps_ignoring_ctrl_c_and_hears_sigterm():
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    stopped = run_loop([2, 2, 15], grace=10, step=0.3, before=ignore)
    assert stopped == ["saved", "RuntimeError handed on 15"]
