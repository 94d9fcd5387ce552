"""The commands `stop`, `logs` and `note`: a run from another terminal."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.runs.lookup import find_run, run_first, where_and_others
from flows.settings.compose import compose
from rl_core.runs.lock import is_free, owner_of
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.mirror import mirrored
from rl_core.system.atomic import refuse_foreign
from rl_core.system.plain_files import open_plain
from rl_core.system.redaction import redact
from rl_core.system.words import LINES, in_one_line, printable

_LOOK_S: Final = 0.5
_LONGEST_NOTE: Final = 500
_MOST_BYTES: Final = 50_000_000
"""Of each file the last ones: a night writes a few."""
_DATED: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (.*)")


def stop(words: Sequence[str]) -> None:
    """Stops a run as Ctrl-C in its terminal does, and waits until it has saved."""
    run = find_run(run_first(words, "stop"))
    process = owner_of(run)
    if process is None:
        status = run.read().status
        where = ": it runs on another machine" if status == "running" else ""
        raise BadInputError(f"no process here is at work on run {run.run_id} ({status}){where}")
    try:
        os.kill(process, signal.SIGINT)
    except PermissionError:
        raise BadInputError(f"run {run.run_id} is another user's (process {process})") from None
    say(f"run {run.run_id} (process {process}) saves and stops; Ctrl-C here does not wait for it")
    while not is_free(run):
        time.sleep(_LOOK_S)
    record = run.read()
    say(f"{record.status}: {record.next_step or record.reason or f'step {record.steps}'}")


def logs(words: Sequence[str], *, follows: bool) -> None:
    """Prints a run's log and those of its processes, by time."""
    run = find_run(run_first(words, "logs"))
    read: dict[Path, int] = {}
    while True:
        is_over = not follows or is_free(run)
        lines = sorted(_new_lines(run, read))
        sys.stdout.writelines(f"{line}\n" for *_, line in lines)
        sys.stdout.flush()
        if is_over:
            return
        time.sleep(_LOOK_S)


def note(words: Sequence[str]) -> None:
    """Keeps a note on a run, in place of the one before; an empty one deletes it."""
    where, rest = where_and_others(words)
    rest = [word.removeprefix("run_id=") for word in words if word.startswith("run_id=")] + rest
    if not 1 <= len(rest) <= 2:
        raise BadInputError('note takes RUN and a TEXT in quotes: countdown-train note RUN "text"')
    where = [word for word in where if not word.startswith("run_id=")]
    run = find_run([*run_first(rest[:1], "note"), *where])
    if len(rest) == 1:
        say(run.read().note or f"run {run.run_id} has no note")
        return
    text = printable(in_one_line(rest[1]))
    if len(text) > _LONGEST_NOTE:
        raise BadInputError(
            f"the note has {len(text):,} characters: write at most {_LONGEST_NOTE} of them"
        )
    try:
        refuse_foreign(run.path)
    except PermissionError as error:
        raise BadInputError(f"run {run.run_id} {error.strerror}: only its owner notes") from None
    with mirrored(compose(where).storage, run.run_id):
        run.update(note=text or None)
    say(f"run {run.run_id}: {redact(text) if text else 'no note any more'}")


def _new_lines(run: RunFolder, read: dict[Path, int]) -> Iterator[tuple[str, str, int, str]]:
    """Yields time, file, place and text of each line after the `read` bytes of its file.

    What a process writes to the run's log too is shown once. A line without a time, of a traceback
    or a library, belongs to the one before it.
    """
    shown: set[str] = set()
    for file in (run.path / "log.txt", *sorted((run.path / "workers").glob("*.log"))):
        name = "" if file.name == "log.txt" else f"[{printable(file.stem)}] "
        lines = printable(_new_text(file, run, read), keep=LINES).splitlines()
        at = ""
        for place, line in enumerate(lines):
            dated = _DATED.fullmatch(line)
            at = dated[1] if dated else at
            if line not in shown:
                yield at, name, place, f"{at} {name}{dated[2]}" if dated else f"{name}{line}"
        shown.update(line for line in lines if _DATED.fullmatch(line))


def _new_text(file: Path, run: RunFolder, read: dict[Path, int]) -> str:
    """Returns the whole lines after the `read` bytes of a file, which it adds to."""
    try:
        with open_plain(file, below=run.path) as log:
            begin = read.get(file, max(0, os.fstat(log.fileno()).st_size - _MOST_BYTES))
            log.seek(begin)
            text = log.read(_MOST_BYTES)
    except OSError:
        return ""
    text = text[: text.rfind(b"\n") + 1]
    read[file] = begin + len(text)
    return text.decode(errors="replace")
