"""Ctrl-C and SIGTERM in mid-training: finish the step, save, then stop as the signal asked."""

from __future__ import annotations

import signal
import threading
from types import FrameType

GRACE_S = 15.0
"""Seconds that a step may take to finish after the signal; then it is abandoned."""
LEAVING_S = GRACE_S + 15.0
"""Seconds after which a process that lost its parent has ended."""


class StopSignals:
    """Turns the first SIGINT or SIGTERM into a request that the trainer loop asks for.

    A second SIGINT, or the end of the grace period, hands the signal to the handler that was there
    before: Ctrl-C raises KeyboardInterrupt, Prefect's SIGTERM handler its TerminationSignal. The
    same happens on leaving the block after a request, so callers see the usual exception.
    Outside the main thread, where Python allows no handlers, it never asks to stop.

    Example:
        with StopSignals() as stop:
            for step in steps:
                ...
                if stop.requested():
                    break
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._signum: int | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def requested(self) -> bool:
        """Says whether somebody asked to stop."""
        return self._signum is not None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                # A shell's `... &` and nohup start a process with SIGINT ignored: so it stays.
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._on_signal)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._restore()
        if self._signum is not None and error is None:
            signal.raise_signal(self._signum)

    def _restore(self) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._signum is not None:
            self._give_up()
        self._signum = signum
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        self._give_up()

    def _give_up(self) -> None:
        asked = self._signum
        assert asked is not None
        self._restore()
        signal.raise_signal(asked)
