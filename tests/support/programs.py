"""Programs that run to their end, what they wrote, and what lives of them."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from rl_core.system.atomic import alone_in

Done = subprocess.CompletedProcess[str]
MAIN = "from flows.cli.main import main; main()"
PROGRAM = [sys.executable, "-c", MAIN]
PREFECT = str(Path(sys.executable).with_name("prefect"))
DATABASE = "prefect.db"


shared_folder: Path | None = None
"""Of this session's tests, in all of pytest's workers; conftest.py fills it in."""


def own_prefect(home: Path, *, is_new: bool = False) -> dict[str, str]:
    """Returns this environment with a PREFECT_HOME of a test's own, and without a server.

    It has an empty database, which takes a server 4 s of CPU to make, unless it is to be new.
    """
    database = home / DATABASE
    if shared_folder and not is_new and not database.exists():
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(_empty_database(shared_folder / "empty"), database)
    there = {"PREFECT_HOME": str(home), "PREFECT_RESULTS_LOCAL_STORAGE_PATH": f"{home}/storage"}
    return {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"} | there


def _empty_database(home: Path) -> Path:
    """Returns the database of a home without runs, which the first caller of a session makes."""
    home.mkdir(exist_ok=True)
    done = home / "done"
    with alone_in(home, wait=True):
        if not done.exists():
            upgrade = (PREFECT, "server", "database", "upgrade", "--yes")
            made = run(*upgrade, env=own_prefect(home, is_new=True))
            assert made.returncode == 0, made.stdout + made.stderr
            assert not (home / f"{DATABASE}-wal").exists()  # all is in the one file
            done.touch()
    return home / DATABASE


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


def started(*command: str, cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a command that keeps running, in a process group of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def python(code: str, *arguments: object, **options: object) -> Done:
    """Runs Python code in a process of its own."""
    return run(sys.executable, "-c", code, *arguments, **options)  # type: ignore[arg-type]


@contextmanager
def begun(
    code: str, *arguments: object, more: Mapping[str, str] | None = None, **options: object
) -> Iterator[subprocess.Popen[str]]:
    """Runs Python code in a process of its own, and kills it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, **(more or {})},
        text=True,
        **({"stdout": subprocess.PIPE} | options),  # type: ignore[call-overload]
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def cli(*words: object, **options: object) -> Done:
    """Runs a command of ours as a person's shell would."""
    return python(MAIN, *words, **options)


def command_lines(processes: Iterable[psutil.Process]) -> dict[psutil.Process, str]:
    """Returns the command line of each process that has not ended meanwhile."""
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            found[process] = " ".join(process.cmdline())
    return found


def lives(process: psutil.Process) -> bool:
    """Says whether a process has not ended; a zombie has."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def living(variable: str, value: str | None = None, part: str = "") -> list[psutil.Process]:
    """Returns all other processes, of any parent, that inherited a variable with this value.

    None is any value; `part` is a text in their command line.
    """
    found = []
    for process in psutil.process_iter():
        try:
            held = process.environ().get(variable)
            marked = held is not None and value in (None, held) and process.pid != os.getpid()
            if marked and lives(process) and part in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
