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
    """Returns the seconds that it took.

    Args:
        condition: asked until it holds.
        limit_s: seconds after which the test fails.
        process: if this one ends meanwhile, the test fails at once.
        poll_s: between two looks.
        seen: what a failure says.
    """
    start = time.monotonic()
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() - start < limit_s, seen()
        time.sleep(poll_s)
    return time.monotonic() - start
