"""A Prefect server on a socket that its parent has opened: `python -m ... server FD [PARENT]`.

`prefect server start` opens its port after seconds of imports, in which another user can take it.
`uvicorn --fd` takes the socket for a Unix socket: the end of a response may wait 40 ms for Nagle.
"""

import ctypes
import os
import signal
import socket
import sys
from typing import Final

from flows.prefect_patches.own_settings import ignore_working_folder

IN_A_SERVER: Final = "PREFECT__SERVER_FINAL"  # Prefect's own variable, set in servers only
_PR_SET_PDEATHSIG: Final = 1


def server_command(listener: socket.socket, *, dies_with_us: bool) -> list[str]:
    """Returns the command that serves on a socket; `pass_fds` must give it to the process."""
    command = [sys.executable, "-P", "-m", "flows.prefect_patches.server_process", "server"]
    parent = [str(os.getpid())] if dies_with_us else []
    return [*command, str(listener.fileno()), *parent]


def main(descriptor: str, parent: str | None = None) -> None:
    """Serves until SIGTERM or, if `parent` is given, until that process ends, killed or not."""
    if parent is not None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before the kernel was asked
            sys.exit(1)
    ignore_working_folder()
    import uvicorn
    from prefect.settings import get_current_settings

    server = get_current_settings().server
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        log_level=server.logging_level.lower(),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[2:])
