"""`make fuzz`: runs the properties with new random examples until the time is up.

It prints a failing example as a line to paste above the test, `@example(text='0/0/+0')`. Where an
example kills the process, that is the last one which the test began when it runs alone.
"""

import random
import re
import subprocess
import sys
import time

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_KILLED = re.compile(r"crashed while running '([^']+)'")
_FOUND = re.compile(r"Failing test case: test_\w+\(\n(.*?)^E? *\)", re.MULTILINE | re.DOTALL)
_BEGUN = re.compile(r"^Test case: test_\w+\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_BLOB = re.compile(r"@reproduce_failure\(.*\)")
_COMMENT = re.compile(r"^E? *(?:# .*)?|  # or any other generated value$")


def main(minutes: float, *where: str) -> int:
    """Returns how many tests failed, and prints an example of each."""
    end = time.monotonic() + 60 * minutes
    failed: set[str] = set()
    num_passes = 0
    while not num_passes or time.monotonic() < end:
        seed = random.SystemRandom().randrange(2**32)
        # Each test that failed is said once.
        without = [f"--deselect={test}" for test in failed]
        said = _pytest(seed, *where, "-m", "hypothesis", "--numprocesses=2", *without)
        for test in {*_FAILED.findall(said), *_KILLED.findall(said)} - failed:
            failed.add(test)
            print(f"\n{test}  # --hypothesis-profile=fuzz --hypothesis-seed={seed}")  # noqa: T201
            print(_example(seed, test), flush=True)  # noqa: T201
        num_passes += 1
    print(f"{num_passes} passes, {len(failed)} tests failed")  # noqa: T201
    return len(failed)


def _example(seed: int, test: str) -> str:
    """Returns the line to paste."""
    said = _pytest(seed, test)
    found = _FOUND.findall(said)
    if not found:
        told = _pytest(seed, test, "--hypothesis-verbosity=verbose", "--capture=no")
        found = _BEGUN.findall(told)
    elif "data(...)" in found[-1] and (blob := _BLOB.search(said)):
        return blob[0]
    if not found:
        return said[-2_000:]
    lines = (_COMMENT.sub("", line) for line in found[-1].splitlines())
    given = (line for line in lines if line and not re.match(r"\w+=PosixPath\(", line))
    return f"@example({' '.join(given).rstrip(',')})"


def _pytest(seed: int, *arguments: str) -> str:
    command = [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    command += ["--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), *sys.argv[2:]) > 0)
