"""Waits for what other processes and threads do."""

import subprocess
import time
from collections.abc import Callable

LIMIT_S = 600.0


def wait_for(
    condition: Callable[[], object],
    limit_s: float = LIMIT_S,
    *,
    process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None,
    poll_s: float = 0.1,
    seen: Callable[[], object] = lambda: "it did not come",
) -> float:
    """Returns the seconds that it took until a condition held.

    After `limit_s` the test fails, and says what was `seen`; if `process` ends meanwhile, at once.
    """
    start = time.monotonic()
    while not condition():
        assert process is None or process.poll() is None, (process.communicate(), seen())
        assert time.monotonic() - start < limit_s, seen()
        time.sleep(poll_s)
    return time.monotonic() - start
