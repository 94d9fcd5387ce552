"""A working folder full of what somebody else has put there: nothing of it may be executed.

Modules, and settings of Prefect, which execute what a logging file names.

And secrets of the shell, of which a process may see only those that it needs.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from rl_core.system.process_env import environment_of_child

_NAMES: Final = (
    *("abc", "asyncio", "ctypes", "json", "logging", "os", "runpy", "sitecustomize", "typing"),
    *("fastapi", "flows", "grpc", "httpx", "numpy", "pandas", "polars", "prefect", "psutil"),
    *("pydantic", "ray", "rl_core", "setproctitle", "tasks", "torch", "transformers"),
    *("usercustomize", "uvicorn", "vllm", "wandb", "yaml"),
)
_TRAP: Final = (
    "from builtins import open\nwith open({mark!r}, 'a') as file: file.write(__name__ + ' ')\n"
)
_LOGGING: Final = """
version: 1
handlers:
  trap:
    class: subprocess.Popen
    args: [sh, -c, "printf '{name} ' >> '{mark}'"]
"""
_SETTINGS: Final = {
    ".env": "PREFECT_LOGGING_SETTINGS_PATH={file}\nPREFECT_API_URL=http://127.0.0.1:9/api\n",
    "prefect.toml": "[logging]\nconfig_path = '{file}'\n",
    "pyproject.toml": "[tool.prefect.logging]\nconfig_path = '{file}'\n",
}
"""By the name of a file that Prefect reads."""
_SPRUNG: Final = "sprung"
WANDB_KEY: Final = "WANDB_API_KEY"
SECRETS: Final = {
    "AWS_ACCESS_KEY_ID": "planted-aws-id",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
    "AZURE_STORAGE_SAS_KEY": "planted-sas",
    "GOOGLE_APPLICATION_CREDENTIALS": "/planted/by/google.json",
    "HF_TOKEN": "hf_planted",
    "NIGHTLY_HOOK": "https://user:planted@127.0.0.1:9/hook",
    "PLANTED_DB_PASSWORD": "planted-password",
    WANDB_KEY: "0123456789abcdef" * 2 + "01234567",
}
"""By the names under which a shell has them."""


def set_traps(folder: Path) -> Path:
    """Returns the folder, made and filled."""
    folder.mkdir()
    mark = str(folder / _SPRUNG)
    for name in _NAMES:
        (folder / f"{name}.py").write_text(_TRAP.format(mark=mark))
    for name, text in _SETTINGS.items():
        file = folder / f"logging-{name}.yml"
        file.write_text(_LOGGING.format(name=name, mark=mark))
        (folder / name).write_text(text.format(file=file))
    return folder


def sprung(folder: Path) -> str:
    """Returns the names of the modules and files that were executed, each with a space."""
    file = folder / _SPRUNG
    return file.read_text() if file.exists() else ""


def secrets_of(processes: Iterable[psutil.Process]) -> dict[str, set[str]]:
    """Returns, by what a process runs, which of the planted secrets it can see.

    An actor's name is without the method that Ray shows while it runs.
    """
    seen: dict[str, set[str]] = {}
    for process in processes:
        try:
            name, words = process.name().partition(".")[0], process.cmdline()
            found = {key for key, value in process.environ().items() if SECRETS.get(key) == value}
        except (psutil.Error, OSError):  # it has ended
            continue
        module = words[words.index("-m") + 1] if "-m" in words else name
        seen[module] = seen.get(module, set()) | found
    return seen


def addresses(processes: Iterable[psutil.Process]) -> dict[str, set[str]]:
    """Returns where each listens, by its name; of a family that lives on meanwhile."""
    found: dict[str, set[str]] = {}
    for process in processes:
        try:
            name, sockets = process.name(), process.net_connections("inet")
        except (psutil.Error, OSError):
            continue
        for socket in sockets:
            if socket.status == psutil.CONN_LISTEN:
                found.setdefault(name, set()).add(socket.laddr.ip.removeprefix("::ffff:"))
    return found


def what_is_seen(reporter: object) -> tuple[set[str], set[str]]:
    """Returns, in a watched process, which secrets it sees and which wandb's process would get."""
    return set(os.environ) & SECRETS.keys(), environment_of_child("wandb").keys() & SECRETS.keys()
