"""Hand-made checkpoints, and what lies in a run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl_core.checkpoints.store import list_checkpoints


def writer(*, size: int = 1_000, fill: bytes = b"w") -> Callable[[Path], None]:
    """Fills a checkpoint like a learner: a model file on top, a state file below."""

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(fill * (size - 10))
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state.bin").write_bytes(fill * 10)

    return write


def steps(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run)]


def pointers(run: Path) -> tuple[str, str]:
    folder = run / "checkpoints"
    assert (folder / "latest" / "checkpoint.json").is_file()
    assert (folder / "best" / "checkpoint.json").is_file()
    return str((folder / "latest").readlink()), str((folder / "best").readlink())


def hidden(run: Path) -> list[str]:
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.iterdir() if p.name.startswith((".tmp-", ".trash-")))
