"""Programs that run to their end, and what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

Done = subprocess.CompletedProcess[str]


def run(
    *command: object,
    more: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout_s: float = 600,
) -> Done:
    """Runs a command in this environment, or in `env`, with `more` variables."""
    return subprocess.run(
        list(map(str, command)),
        env={**(os.environ if env is None else env), **(more or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def python(code: str, *arguments: object, **options: object) -> Done:
    """Runs Python code in a process of its own."""
    return run(sys.executable, "-c", code, *arguments, **options)  # type: ignore[arg-type]


def cli(*words: object, **options: object) -> Done:
    """Runs a command of ours as a person's shell would."""
    return python("from flows.cli.main import main; main()", *words, **options)
