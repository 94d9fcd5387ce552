"""What Ray's own processes wrote when Ray did not start: kept, since its folder goes with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from rl_core.errors import first_line, last_line
from rl_core.system.words import cut, in_one_line, printable

_TELLING: Final = ("gcs_server.err", "raylet.err", "gcs_server.out", "raylet.out")
"""Logs of the processes that must be up; Ray marks errors with E, fatal ones with C."""
_CHARACTERS: Final = 200


def why_not_started(error: Exception, session: Path, keep_in: Path | None) -> str:
    """Returns in one line why Ray did not start, with the last that its processes said.

    Ray's messages name logs in its session's folder, which is deleted when the start has failed.

    Args:
        error: what `ray.init` raised.
        session: the temporary folder that Ray was given.
        keep_in: a folder for the logs, which the line then names; without one they are lost.
    """
    logs = session / "session_latest" / "logs"
    is_traceback = "Traceback (most recent call last)" in str(error)  # that Ray's head sent
    reason = in_one_line(last_line(error) if is_traceback else first_line(error))
    last = _last_words(logs)
    if keep_in is None or not logs.is_dir():
        return "; ".join(filter(None, (reason, last)))
    kept = keep_in / "ray"
    try:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(logs, kept, symlinks=True)
    except OSError as failed:
        return f"{reason}; {last}; its logs could not be kept ({first_line(failed)})"
    for named in (logs, logs.resolve()):  # session_latest is a link
        reason = reason.replace(str(named), str(kept))
    return "; ".join(filter(None, (reason, last, f"all its logs: {kept}")))


def _last_words(logs: Path) -> str:
    """Returns the last error that a daemon wrote, else nothing; after it come but stack frames."""
    for name in _TELLING:
        try:
            lines = (logs / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        errors = [line.strip() for line in lines if " E " in line or " C " in line]
        if errors:
            return f"{name} says: {printable(cut(errors[-1], _CHARACTERS))}"
    return ""
