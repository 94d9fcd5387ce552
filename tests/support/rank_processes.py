"""Learner ranks as plain processes: real gloo on loopback, without Ray."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rl_core.learner.ranks import Ranks

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
LIMIT_S = 600.0


def on_ranks(size: int, function: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
    """Returns what `function(ranks, *args, **named)` returned in each of `size` processes.

    It must stand at a module's top level. A process that raises fails the test with its traceback.
    """
    # Copies of one process that has imported torch, has done nothing with it and has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.rank_work"])
    with TemporaryDirectory() as name:
        folder, work = Path(name), partial(function, **named)
        processes = [
            context.Process(target=_run, args=(rank, size, folder, work, args))
            for rank in range(size)
        ]
        with pytest.MonkeyPatch.context() as patch:
            # They look for modules where this process does, and pytest finds tests without looking.
            patch.syspath_prepend(ROOT)
            for process in processes:
                process.start()
        try:
            for process in processes:
                process.join(LIMIT_S)
                assert process.exitcode is not None, f"a rank hangs for {LIMIT_S:g} s"
        finally:
            for process in processes:
                process.kill()
        files = [folder / str(rank) for rank in range(size)]
        results = [pickle.loads(file.read_bytes()) for file in files if file.exists()]  # our own
    failures = [text for is_fine, text in results if not is_fine]
    assert not failures, "\n".join(failures)
    assert len(results) == size, [process.exitcode for process in processes]
    return [result for _, result in results]


def meet_at(place: Path, rank: int, size: int) -> Ranks:
    """Returns this rank once all have met at a file."""
    from rl_core.learner.ranks import meet

    return meet(rank, size, place=place, own_host=LOOPBACK, timeout_s=LIMIT_S)


def _run(
    rank: int, size: int, folder: Path, function: Callable[..., Any], args: Sequence[Any]
) -> None:
    try:
        result = True, function(meet_at(folder / "meeting", rank, size), *args)
    except Exception:  # noqa: BLE001  # told in the test's process
        result = False, f"rank {rank}:\n{traceback.format_exc()}"
    (folder / str(rank)).write_bytes(pickle.dumps(result))
