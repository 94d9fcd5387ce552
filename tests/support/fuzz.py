"""`make fuzz`: runs the properties with new random examples until the time is up."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)|crashed while running '([^']+)'", re.MULTILINE)


def main(minutes: float, *where: str) -> int:
    """Returns how many passes failed, and prints what pytest said: hypothesis shows its example."""
    end, num_passes, num_failed = time.monotonic() + 60 * minutes, 0, 0
    without: list[str] = []
    while not num_passes or time.monotonic() < end:
        seed = random.SystemRandom().randrange(2**32)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m"]
        command += ["hypothesis", "--numprocesses=2", "--hypothesis-profile=fuzz"]
        command += [f"--hypothesis-seed={seed}", *where, *without]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        num_passes += 1
        if done.returncode:
            num_failed += 1
            print(f"seed {seed}:\n{done.stdout}{done.stderr}", flush=True)  # noqa: T201
            # Each test that failed is said once.
            found = {test or killed for test, killed in _FAILED.findall(done.stdout)}
            without += [f"--deselect={test}" for test in found]
    print(f"{num_passes} passes, {num_failed} failed")  # noqa: T201
    return num_failed


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *sys.argv[2:]) > 0)
