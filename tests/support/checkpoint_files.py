"""Hand-made checkpoints, and what lies in a run's folder."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rl_core.checkpoints.manifest import MANIFEST, find_damage
from rl_core.checkpoints.store import list_checkpoints, save_checkpoint


def writer(*, size: int = 1_000, fill: bytes = b"w") -> Callable[[Path], None]:
    """Fills a checkpoint like a learner: a model file on top, a state file below."""

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(fill * (size - 10))
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state.bin").write_bytes(fill * 10)

    return write


def copying(model: Path, change: Callable[[Path], object] | None = None) -> Callable[[Path], None]:
    """Fills a checkpoint with the files of a model's folder, and may change them."""

    def write(folder: Path) -> None:
        shutil.copytree(model, folder, dirs_exist_ok=True)
        if change is not None:
            change(folder)

    return write


def save_steps(run: Path, accuracies: Mapping[int, float], *, size: int = 1_000) -> None:
    """Saves a checkpoint of each step, with its accuracy."""
    for step, accuracy in accuracies.items():
        save_checkpoint(run, step, writer(size=size), accuracy)


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


def flip_a_byte(folder: Path, file: str = "trainer/state.bin") -> str:
    *content, last = (folder / file).read_bytes()
    (folder / file).write_bytes(bytes([*content, last ^ 1]))
    return f"{file} has other content than was saved"


def cut_a_file(folder: Path, file: str = "model.bin") -> str:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:5])
    return f"{file} has 5 bytes instead of {len(content)}"


def lose_a_file(folder: Path) -> str:
    (folder / "model.bin").unlink()
    return "model.bin is missing"


def lose_the_manifest(folder: Path) -> str:
    (folder / "checkpoint.json").unlink()
    return "checkpoint.json cannot be read: No such file or directory"


def garble_the_manifest(folder: Path) -> str:
    (folder / "checkpoint.json").write_text('{"step": 2')
    return "checkpoint.json is not a manifest"


def cannot_read_a_file(folder: Path) -> str:
    (folder / "model.bin").unlink()
    (folder / "model.bin").symlink_to("/sys/class/net/lo/speed")  # 4096 bytes, and no read works
    manifest = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(manifest.replace('"bytes": 990', '"bytes": 4096'))
    return "model.bin is a link, is behind one, or is no plain file"


DAMAGES = [flip_a_byte, cut_a_file, lose_a_file, lose_the_manifest, garble_the_manifest]
DAMAGES += [cannot_read_a_file]
"""Each damages a checkpoint, and returns what is said of it."""


def saved_files(checkpoint: Path) -> dict[str, str]:
    """Returns the hash of each file of a checkpoint but its manifest, which holds the time."""
    assert find_damage(checkpoint) is None
    return {
        path.relative_to(checkpoint).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in checkpoint.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
