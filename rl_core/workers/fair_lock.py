"""A lock for two threads that take turns."""

from __future__ import annotations

import threading


class FairLock:
    """A lock that a thread cannot take again while another waits for it.

    So a thread that holds it for one piece of work after the other lets others in between.
    """

    def __init__(self) -> None:
        self._busy, self._next = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._busy.acquire()

    def __exit__(self, *_: object) -> None:
        self._busy.release()
