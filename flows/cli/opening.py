"""The command `open`: a run's report, or Prefect's pages, in a browser; else how to get there."""

import os
import shlex
import webbrowser
from collections.abc import Sequence
from getpass import getuser
from urllib.parse import urlsplit

from flows.cli.terminal import say
from flows.errors import BadInputError, RunFailedError
from flows.runs.lookup import find_run, run_first
from flows.settings.compose import compose
from rl_core.storage.mirror import mirrored
from tasks.report import write_report


def open_in_browser(words: Sequence[str]) -> None:
    """Opens a report, which it writes anew, or the pages of Prefect's server."""
    if list(words) == ["ui"]:
        _open_ui()
        return
    overrides = run_first(words, "open")
    run = find_run(overrides)
    with mirrored(compose(overrides).storage, run.run_id):
        # Written anew: the page in a stranger's run might hold scripts.
        page = write_report(run.path).html.absolute()
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
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    is_mac = os.uname().sysname == "Darwin" and not _over_ssh()
    return (has_screen or is_mac) and webbrowser.open(url)


def _over_ssh() -> str:
    """Returns USER@ADDRESS of this machine as an ssh client reaches it; empty without one."""
    client_and_server = os.environ.get("SSH_CONNECTION", "").split()
    return f"{getuser()}@{client_and_server[2]}" if len(client_and_server) == 4 else ""
