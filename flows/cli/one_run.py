"""The commands about one run: `stop`, `logs`, `note`, `report`, `audit` and `open`.

They read a run's files, so they load neither Prefect nor torch.
"""

import os
import re
import shlex
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flows.cli.reply import give
from flows.cli.terminal import say
from flows.errors import BadInputError, RunFailedError
from flows.runs.lookup import find_run, run_first, where_and_others
from flows.settings.compose import compose
from flows.settings.keys import check_choice
from rl_core.runs.lock import is_free, owner_of
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.mirror import mirrored
from rl_core.system.atomic import refuse_foreign
from rl_core.system.plain_files import open_plain
from rl_core.system.redaction import redact
from rl_core.system.words import LINES, counted, in_one_line, printable

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
        sys.stdout.writelines(f"{line}\n" for *_, line in sorted(_new_lines(run, read)))
        sys.stdout.flush()
        if is_over:
            return
        time.sleep(_LOOK_S)


def note(words: Sequence[str]) -> None:
    """Keeps a note on a run, in place of the one before; an empty one deletes it."""
    where = [word for word in words if word.startswith(("storage.root=", "storage.url="))]
    named = [word for word in words if word.startswith("run_id=")]
    rest = named + [word for word in words if word not in where + named]
    if not 1 <= len(rest) <= 2:
        raise BadInputError('note takes RUN and a TEXT in quotes: countdown-train note RUN "text"')
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


def report(words: Sequence[str]) -> None:
    """Writes the report of a RUN, by default the latest."""
    say(_write_report(words, "report"))


def _write_report(words: Sequence[str], command: str) -> Path:
    from tasks.report import write_report  # with DuckDB

    overrides = run_first(words, command)
    run = find_run(overrides)
    with mirrored(compose(overrides).storage, run.run_id):
        return write_report(run.path).html


def audit(words: Sequence[str]) -> None:
    """Prints the receipt of a RUN, by default the latest, and keeps it for the report."""
    from tasks.audit.receipt import audit_run, is_green

    where, others = where_and_others(run_first(words, "audit"))
    named = dict(word.split("=", 1) for word in others)
    rewards = named.pop("env.reward", "")
    if (env := named.pop("env", None)) is not None:
        check_choice("env", env)
    if named:
        key = next(iter(named))
        raise BadInputError(f"audit takes RUN, and env.reward= or env= if it is code, not {key}=")
    run = find_run(where)
    lines = audit_run(run, rewards.strip("[]").split(","))
    give(run_id=run.run_id, lines=lines)
    for line in lines:
        say(f"{line.outcome:8} {line.subject:23} {line.words}")
    with mirrored(compose(where).storage, run.run_id), suppress(OSError):
        run.receipt.keep_audit(lines, run.read().steps)
    if is_green(lines):
        return
    outcomes = [line.outcome for line in lines]
    raise RunFailedError(
        f"{counted(outcomes.count('FAILS'), 'check')} of {len(lines)} failed for run {run.run_id}, "
        f"and {outcomes.count('unknown')} could not be made"
    )


def open_in_browser(words: Sequence[str]) -> None:
    """Writes and opens a report, or opens the pages of Prefect's server."""
    if list(words) == ["ui"]:
        _open_ui()
        return
    # Written anew: the page in a stranger's run might hold scripts.
    page = _write_report(words, "open").absolute()
    say(page)
    if not _opened(page.as_uri()) and (machine := _over_ssh()):
        say(f"on your own machine: scp {shlex.quote(f'{machine}:{page}')} .")


def _open_ui() -> None:
    from prefect.settings import get_current_settings  # with its settings of the ui

    from flows.cli.serve_status import serving

    settings = get_current_settings()
    there = serving(settings.home)
    api = there["url"] if there else settings.api.url
    if api is None:
        raise RunFailedError("no server is up: countdown-train serve starts one")
    url = str(api).removesuffix("/api")
    address = urlsplit(url)
    if address.scheme not in ("http", "https"):
        raise BadInputError(
            f"PREFECT_API_URL={api} is no URL of a page: write http://HOST:PORT/api"
        )
    say(url)
    if not _opened(url) and (machine := _over_ssh()):
        port = address.port or 80
        say(f"on your own machine: ssh -L {port}:127.0.0.1:{port} {machine}, and then {url}")


def _opened(url: str) -> bool:
    """Opens a URL where there is a screen, or where BROWSER names a program."""
    is_mac = os.uname().sysname == "Darwin" and not _over_ssh()
    has_screen = is_mac or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    return has_screen and webbrowser.open(url)


def _over_ssh() -> str:
    """Returns USER@ADDRESS of this machine as an ssh client reaches it; empty without one."""
    client_and_server = os.environ.get("SSH_CONNECTION", "").split()
    return f"{getuser()}@{client_and_server[2]}" if len(client_and_server) == 4 else ""
