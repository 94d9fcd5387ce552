"""What travels between machines, which copies stay, and what a full disk costs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from rl_core.checkpoints.manifest import MANIFEST, write_manifest
from rl_core.system.atomic import reading
from rl_core.workers import node_files
from rl_core.workers.node_files import (
    CHUNK_BYTES,
    Folder,
    Handover,
    NodeFile,
    Staging,
    cache_folder,
    here,
)
from tests.support.faults import mounted_small_disk


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """Ray's id of this machine."""
    options = {"include_dashboard": False, "log_to_driver": False, "_node_ip_address": "127.0.0.1"}
    ray.init(address="local", num_cpus=1, num_gpus=0, **options)
    yield ray.get_runtime_context().get_node_id()
    ray.shutdown()


def checkpoint(folder: Path) -> Path:
    """A folder of three files and a manifest; one is longer than two chunks, one is empty."""
    (folder / "trainer").mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(b"first")
        file.truncate(2 * CHUNK_BYTES + 7)
    (folder / "empty").touch()
    (folder / "trainer" / "learner.json").write_text("{}")
    write_manifest(folder, 3, None)
    return folder


def names(folder: Folder) -> list[str]:
    return [file.path for file in folder.files]


def test_a_folder_is_what_its_files_are(tmp_path: Path) -> None:
    saved = Folder.of(checkpoint(tmp_path / "saved"), "")
    assert names(saved) == [MANIFEST, "empty", "model.safetensors", "trainer/learner.json"]
    assert names(saved.model_alone()) == [MANIFEST, "empty", "model.safetensors"]
    own = tmp_path / "own"
    (own / ".cache").mkdir(parents=True)
    for name in ("config.json", ".gitattributes", ".cache/lock"):
        (own / name).touch()
    assert names(Folder.of(own, "")) == ["config.json"]


def test_the_same_files_at_the_same_path_are_used_where_they_lie(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "saved")
    whole = Folder.of(path, "")
    assert here(path) == here(whole) == here(whole.model_alone()) == path
    assert not cache_folder().exists()


def test_a_file_is_written_to_the_drivers_disk_where_that_is_in_sight(tmp_path: Path) -> None:
    mark = tmp_path / "run" / ".seen-1"
    file = NodeFile(tmp_path / "run" / "engine_0.log", mark, Path("logs", "1", "engine_0.log"))
    own = here(file)
    assert own == tmp_path / "cache" / "countdown-train" / "logs" / "1" / "engine_0.log"
    assert own.parent.is_dir()
    mark.parent.mkdir()
    mark.touch()
    assert here(file) == tmp_path / "run" / "engine_0.log"


def test_a_checkpoint_is_written_where_it_goes_if_that_is_in_sight(tmp_path: Path) -> None:
    final = tmp_path / "final"
    final.mkdir()
    assert Staging().write(final, lambda folder: (folder / "file").touch()) is None
    assert (final / "file").exists()


def test_no_room_on_the_learners_machine_is_not_taken_for_the_drivers_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_small_disk(tmp_path) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        with pytest.raises(OSError, match=r"has no room for a checkpoint on its way: .* free"):
            Staging().write(tmp_path / "elsewhere", lambda to: (to / "f").write_bytes(b"x" * 2**22))
        assert [path for path in disk.rglob("*") if path.name == "f"] == []


def test_copies_that_nobody_uses_make_room_for_new_ones(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"copy{i}").mkdir()
        os.utime(tmp_path / f"copy{i}", (i, i))
    with reading(tmp_path / "copy0"):
        node_files.make_room_for_copy(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == [
        *("copy0", "copy3", "copy4", "copy5")
    ]


@pytest.mark.slow
def test_a_folder_travels_in_chunks_once_and_stays(node: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "saved")
    folder = Folder.of(path, node)
    expected = {file: (path / file).read_bytes() for file in names(folder)}
    os.utime(path / MANIFEST, (1, 1))  # as one that another machine has at this path
    copy = here(folder)
    assert copy.name == "saved"
    assert copy.is_relative_to(cache_folder())
    assert {file: (copy / file).read_bytes() for file in names(folder)} == expected
    shutil.rmtree(path)
    assert here(folder) == copy
    with pytest.raises(ValueError, match=r"could not be read: .*No such file"):
        here(folder.model_alone())

    (tmp_path / "target").mkdir()
    (tmp_path / "saved").mkdir()
    for file, content in expected.items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_bytes(content.replace(b"first", b"other"))
    with pytest.raises(ValueError, match=r"model\.safetensors has other content than was saved"):
        folder.bring(tmp_path / "target")


@pytest.mark.slow
def test_a_folder_is_handed_over_to_a_machine_once(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint(tmp_path / "saved")
    in_sight, folder = Folder.of(path, ""), Folder.of(path, "")
    assert Handover(node)(in_sight).path == path
    expected = {file: (path / file).read_bytes() for file in names(folder)}
    os.utime(path / MANIFEST, (1, 1))  # as one that another machine has at this path
    give = Handover(node)
    given = give(folder)
    assert (given.path.name, given.node) == ("saved", node)
    assert names(given) == names(folder)
    assert {file: (given.path / file).read_bytes() for file in names(given)} == expected
    shutil.rmtree(path)
    assert give(folder) is given
    assert Handover(node)(folder) == given
    with pytest.raises(FileNotFoundError):
        Handover(node)(folder.model_alone())


@pytest.mark.slow
def test_a_checkpoint_goes_by_way_of_the_learners_disk_and_leaves_it(
    node: str, tmp_path: Path
) -> None:
    staging, target = Staging(), tmp_path / "target"
    staged = staging.write(tmp_path / "unseen", lambda to: (to / "file").write_bytes(b"x"))
    assert staged is not None
    target.mkdir()
    staged.bring(target)
    assert (target / "file").read_bytes() == b"x"
    second = staging.write(tmp_path / "unseen", lambda to: (to / "file").touch())
    assert second is not None
    assert not staged.path.exists()
    assert second.path.is_relative_to(cache_folder())
