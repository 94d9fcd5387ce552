"""Learner ranks as plain processes: real gloo on loopback, without Ray."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LOOPBACK = "127.0.0.1"
LIMIT_S = 240.0


def on_ranks(size: int, function: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
    """Returns what `function(ranks, *args, **named)` returned in each of `size` processes.

    It must stand at a module's top level. A process that raises fails the test with its traceback.
    """
    context = multiprocessing.get_context("spawn")
    work = partial(function, **named)
    with TemporaryDirectory() as folder:
        here, there = context.Pipe()
        files = [Path(folder) / f"{rank}" for rank in range(size)]
        first = context.Process(target=_run, args=(0, size, there, files[0], work, args))
        first.start()
        there.close()
        port = here.recv()
        processes = [first] + [
            context.Process(target=_run, args=(rank, size, port, files[rank], work, args))
            for rank in range(1, size)
        ]
        for process in processes[1:]:
            process.start()
        try:
            for process in processes:
                process.join(LIMIT_S)
                assert process.exitcode is not None, f"a rank hangs for {LIMIT_S:g} s"
        finally:
            for process in processes:
                process.kill()
        results = [pickle.loads(file.read_bytes()) for file in files if file.exists()]  # our own
    failures = [text for is_fine, text in results if not is_fine]
    assert not failures, "\n".join(failures)
    assert len(results) == size, [process.exitcode for process in processes]
    return [result for _, result in results]


def _run(
    rank: int, size: int, port: Any, file: Path, function: Callable[..., Any], args: Any
) -> None:
    from rl_core.learner.ranks import enter_meeting, meet, open_meeting

    if rank == 0:
        meeting = open_meeting(LOOPBACK, size)
        port.send(meeting.port)
        port.close()
    else:
        meeting = enter_meeting(LOOPBACK, port, size)
    try:
        ranks = meet(rank, size, meeting=meeting, own_host=LOOPBACK, timeout_s=LIMIT_S)
        result = True, function(ranks, *args)
    except Exception:  # noqa: BLE001  # told in the test's process
        result = False, f"rank {rank}:\n{traceback.format_exc()}"
    file.write_bytes(pickle.dumps(result))
