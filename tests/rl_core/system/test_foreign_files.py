"""ATTACKS on a shared folder: links, pipes and files of another user where a run writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.lock import close_lost_runs, owned, started, training
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import (
    append_line,
    locked,
    new_folder,
    refuse_foreign,
    write_text_atomically,
)
from rl_core.system.disk_reserve import RESERVE, hold_reserve, write_last_words
from rl_core.system.log_file import log_to_file
from tests.support.runs import new_run

PRECIOUS = "another user's file\n"
STRANGER = 54321
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


def enter(manager: Any) -> None:
    with manager:
        pass


def give_up_reserve(folder: Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    write_last_words(folder, fail)


WRITERS: dict[str, Callable[[Path], object]] = {
    ".owner": lambda folder: enter(owned(RunFolder(folder))),
    ".trainer": lambda folder: enter(training(RunFolder(folder), wait_s=0)),
    ".reserve": hold_reserve,
    ".reserve, given up": give_up_reserve,
    ".lock": lambda folder: enter(locked(folder)),
    "metrics.jsonl": lambda folder: append_line(folder / "metrics.jsonl", b"{}\n"),
    "log.txt": lambda folder: enter(log_to_file(folder / "log.txt")),
    "config.yaml": lambda folder: RunFolder(folder).make(),
    "rollouts": lambda folder: RunFolder(folder).make(),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_link_is_followed_where_a_run_writes(name, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text(PRECIOUS)
    folder.mkdir()
    (folder / name.partition(",")[0]).symlink_to(victim)
    refusals = r"is a link or no plain file: remove it|No space left"
    with pytest.raises((OSError, ValueError), match=refusals):
        WRITERS[name](folder)
    assert victim.read_text() == PRECIOUS


@pytest.mark.parametrize("name", [".owner", "metrics.jsonl", "log.txt"])
def test_a_pipe_does_not_hold_a_run_up(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(PermissionError, match="no plain file"):
        WRITERS[name](tmp_path)
    if name == ".owner":
        folder = tmp_path / "runs" / "r"
        folder.mkdir(parents=True)
        run = new_run(tmp_path)
        os.mkfifo(folder / ".owner")
        close_lost_runs(tmp_path)
        assert run.read().status == "running"


@is_root
@pytest.mark.parametrize("name", [".owner", ".reserve", "metrics.jsonl", "log.txt"])
def test_another_users_file_is_not_written(name, tmp_path):
    (tmp_path / name).write_text(PRECIOUS)
    os.chown(tmp_path / name, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"belongs to another user .{STRANGER}.: remove it"):
        WRITERS[name](tmp_path)
    assert (tmp_path / name).read_text() == PRECIOUS


@is_root
@pytest.mark.parametrize("is_link", [False, True])
def test_no_run_starts_in_another_users_folder(is_link, tmp_path):
    folder, elsewhere = tmp_path / "runs" / "r", tmp_path / "home"
    folder.parent.mkdir()
    elsewhere.mkdir()
    if is_link:  # to a folder of ours, by a link that is not ours
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
    os.chown(folder, STRANGER, STRANGER, follow_symlinks=False)
    config = RunConfig(run_id="r", storage=StorageConfig(root=tmp_path))
    with pytest.raises(ValueError, match="belongs to another user"), started(config):
        pass
    assert not [*folder.iterdir(), *elsewhere.iterdir()]


def test_a_run_on_a_larger_disk_behind_a_link_of_ones_own_starts(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "r").symlink_to(tmp_path / "large")
    with started(RunConfig(run_id="r", storage=StorageConfig(root=tmp_path))) as run:
        assert (tmp_path / "large" / "run.json").exists()
    refuse_foreign(run.path)
    assert (tmp_path / "large" / RESERVE).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "runs"]


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o077, 0o600, 0o700), (0o002, 0o664, 0o775)]
)
def test_who_may_read_is_by_the_umask(umask, file, folder, tmp_path):
    before = os.umask(umask)
    try:
        write_text_atomically(tmp_path / "a.txt", "a")
        append_line(tmp_path / "b.txt", b"b\n")
        with new_folder(tmp_path / "c") as made:
            (made / "d").touch(0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"a.txt": file, "b.txt": file, "c": folder, "d": file}
