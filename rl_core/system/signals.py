"""Ctrl-C and SIGTERM in mid-training: save what was learned, then stop as the signal asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

GRACE_S: Final = 15.0
"""Seconds after SIGTERM, by default, that a step and its save may take; then they are given up."""
LEAVING_S: Final = 15.0
"""Seconds beyond that after which a process that lost its parent has ended."""


class StopAsked(BaseException):
    """A stop was asked for while there was nothing worth finishing."""


class StopSignals:
    """Turns the first SIGINT or SIGTERM into a request that the trainer loop looks at.

    SIGKILL usually follows SIGTERM after a delay, so a step that lasts longer than the grace period
    is given up; a person at a terminal waits, or presses Ctrl-C again. Then, and at the end of the
    block after a request, the signal goes to the handler that was there before: Ctrl-C raises
    KeyboardInterrupt, Prefect's SIGTERM handler its TerminationSignal. Outside the main thread,
    where Python allows no handlers, nothing is ever requested.

    Example:
        with StopSignals() as stop:
            for step in steps:
                with stop.interruptible():
                    ...  # what may be lost
                ...
                if stop.requested():
                    break
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        self.asked_by: signal.Signals | None = None
        """SIGINT or SIGTERM, once one of them came; SIGTERM if both did."""
        self._interruptible = False
        self._before: dict[int, signal._HANDLER] = {}

    def requested(self) -> bool:
        """Returns whether a signal has come."""
        return self.asked_by is not None

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ends the block with `StopAsked` as soon as a signal comes, or has come before."""
        try:
            self._interruptible = True
            if self.requested():
                raise StopAsked
            yield
        finally:
            self._interruptible = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                # A shell's `... &` and nohup start a process that ignores SIGINT: so it stays.
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._on_signal)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: self._give_up())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._restore()
        if self.asked_by is not None and error is None:
            signal.raise_signal(self.asked_by)

    def _restore(self) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM:
            # A second one changes nothing: it comes if the parent, which sent the first, is killed
            # because it waited too long.
            if self.asked_by is not signal.SIGTERM:
                signal.setitimer(signal.ITIMER_REAL, self.grace_s)
            self.asked_by = signal.SIGTERM
        elif self.asked_by is None:
            self.asked_by = signal.SIGINT
        else:
            self._give_up()
        if self._interruptible:
            self._interruptible = False
            raise StopAsked

    def _give_up(self) -> None:
        assert self.asked_by is not None
        self._restore()
        signal.raise_signal(self.asked_by)
