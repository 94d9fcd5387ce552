"""Real signals to a real process: what a person's Ctrl-C does to the loop."""

import signal
import time
from collections.abc import Callable

import pytest

from tests.support.programs import begun

LOOP = """
import signal, sys, time
from rl_core.system.signals import StopAsked, StopSignals

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

WAITING = """
            try:
                with stop.interruptible():
                    time.sleep(30)
            except StopAsked:
                pass
""".strip()


def run_loop(
    signals: list[int],
    *,
    grace: float,
    step: float,
    before: Callable[[], object] | None = None,
    code: str = LOOP,
) -> list[str]:
    code = code.replace("GRACE", str(grace)).replace("STEP", str(step))
    with begun(code, preexec_fn=before) as process:
        assert process.stdout.readline() == "ready\n"
        for signum in signals:
            process.send_signal(signum)
            time.sleep(0.2)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return [line.strip() for line in output.splitlines()]


INT, TERM = "KeyboardInterrupt", "RuntimeError handed on 15"


@pytest.mark.parametrize(
    ("signals", "grace", "step", "said"),
    [
        # The step is finished and saved before the signal is handed on.
        ([15], 10, 0.3, ["saved", TERM]),
        ([2], 10, 0.3, ["saved", INT]),
        ([15], 0.3, 30, [TERM]),  # a step longer than the grace is abandoned
        # A second SIGTERM neither hurries nor delays.
        ([15, 15], 20, 1, ["saved", TERM]),
        ([15, 15], 0.5, 30, [TERM]),
        ([2], 0.1, 2, ["saved", INT]),  # Ctrl-C waits for the step, however long it takes
        # A second Ctrl-C does not wait.
        ([2, 2], 30, 30, [INT]),
        ([15, 2], 30, 30, [TERM]),
        ([2, 15], 0.3, 30, [TERM]),  # SIGTERM after Ctrl-C sets the limit
    ],
)
def test_whether_a_step_is_saved_and_what_is_handed_on(signals, grace, step, said):
    assert run_loop(signals, grace=grace, step=step) == said


@pytest.mark.parametrize(
    ("signum", "work"),
    [(2, WAITING), (15, WAITING), (15, f"time.sleep(STEP)\n            {WAITING}")],
)
def test_what_may_be_lost_is_not_waited_for_nor_begun_after_the_request(signum, work):
    code = LOOP.replace("time.sleep(STEP)", work)
    assert run_loop([signum], grace=30, step=1, code=code)[0] == "saved"


def test_a_background_process_keeps_ignoring_ctrl_c_and_hears_sigterm():
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    stopped = run_loop([2, 2, 15], grace=10, step=0.3, before=ignore)
    assert stopped == ["saved", "RuntimeError handed on 15"]
