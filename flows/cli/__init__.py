"""The command line. Ctrl-C while it imports ends it in one line: there is nothing to save yet."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def leave(signum: int, frame: FrameType | None) -> NoReturn:
    """Ends the process at once; a KeyboardInterrupt within an import would be a traceback."""
    os.write(2, b"countdown-train: interrupted\n")
    os._exit(1)


if sys.argv and sys.argv[0].endswith("countdown-train"):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under `nohup`
        signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
