"""`make seeded-faults`: which test catches each fault of seeded_faults.toml, put into a copy."""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests/seeded_faults.toml"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def read_faults() -> list[dict[str, Any]]:
    """Returns the faults: what, file, old, new, tests."""
    faults: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["fault"]
    return faults


def main(*words: str) -> int:
    """Prints a line per fault, of those that hold a word, and returns how many nobody caught."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        tree = Path(folder, "tree")
        leave_out = shutil.ignore_patterns(".git", ".venv", "outputs", ".*_cache", "__pycache__")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=leave_out)
        for fault in read_faults():
            if words and not any(word in f"{fault['what']} {fault['file']}" for word in words):
                continue
            path = tree / fault["file"]
            right = path.read_text()
            path.write_text(right.replace(fault["old"], fault["new"]))
            caught = _first_failure(tree, fault["tests"])
            path.write_text(right)
            missed += caught is None
            print(f"{caught or 'NOBODY'}  |  {fault['what']}", flush=True)  # noqa: T201
    return missed


def _first_failure(tree: Path, tests: list[str]) -> str | None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", *tests]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2_000:]}")
    found = _FAILED.search(ran.stdout)
    return found[1] if found else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
