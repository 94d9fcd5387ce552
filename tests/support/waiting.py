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
    A long wait looks less often: a look takes CPU from what it waits for.
    """
    start = time.monotonic()
    waited_s = 0.0
    while not condition():
        assert process is None or process.poll() is None, (process.communicate(), seen())
        assert waited_s < limit_s, seen()
        time.sleep(max(poll_s, min(waited_s / 50, 0.25)))
        waited_s = time.monotonic() - start
    return time.monotonic() - start
