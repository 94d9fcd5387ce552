import errno
import stat
from functools import partial
from pathlib import Path

import pytest

from rl_core.system import atomic
from tests.support.faults import found_after_kills, leave_free


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_text_replaces_what_was_there_and_anybody_may_read_it(tmp_path):
    file = tmp_path / "new" / "a.txt"
    atomic.write_text_atomically(file, "old")
    atomic.write_text_atomically(file, "näw")
    assert file.read_bytes() == "näw".encode()
    assert mode(file) == 0o644
    assert names(file.parent) == ["a.txt"]


@pytest.mark.parametrize("free_bytes", [0, 4096, 8192])
def test_a_full_disk_leaves_the_old_file(small_disk, free_bytes):
    file = small_disk / "a.bin"
    atomic.write_bytes_atomically(file, b"old")
    leave_free(small_disk, free_bytes)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic.write_bytes_atomically(file, b"x" * 20_000)
    assert caught.value.errno == errno.ENOSPC
    assert file.read_bytes() == b"old"
    assert names(small_disk) == ["a.bin", "ballast"]


def test_a_line_for_which_there_is_no_room_leaves_the_log_as_it_was(small_disk):
    log = small_disk / "log.jsonl"
    atomic.append_line(log, b"one\n")
    leave_free(small_disk, 4096)
    with pytest.raises(OSError, match="No space left"):
        atomic.append_line(log, b"x" * 20_000 + b"\n")
    assert log.read_bytes() == b"one\n"


def test_a_file_is_old_or_new_wherever_its_writer_is_killed(tmp_path):
    file = tmp_path / "a.txt"
    old, new = (partial(atomic.write_text_atomically, file, text) for text in ("old", "new"))
    found = found_after_kills(old, new, file.read_text)
    assert len(found) > 5
    assert (found[0], found[-1], set(found)) == ("old", "new", {"old", "new"})
    atomic.sweep_leftovers(tmp_path)
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_whole_with_its_subfolders_readable(tmp_path):
    final = tmp_path / "data" / "set"
    with atomic.new_folder(final) as temporary:
        (temporary / "sub").mkdir(mode=0o700)
        private = temporary / "sub" / "a"
        private.write_text("1")
        private.chmod(0o600)
        assert not final.exists()
        assert temporary.parent == final.parent
    assert (final / "sub" / "a").read_text() == "1"
    assert (mode(final), mode(final / "sub"), mode(final / "sub" / "a")) == (0o755, 0o755, 0o644)
    assert names(final.parent) == ["set"]


def test_a_folder_replaces_the_one_before_and_a_failed_one_does_not(tmp_path):
    final = tmp_path / "set"

    def fill(name: str) -> None:
        with atomic.new_folder(final) as temporary:
            (temporary / name).write_text(name)
            if name == "failed":
                raise ValueError("no")

    fill("old")
    fill("new")
    with pytest.raises(ValueError, match="no"):
        fill("failed")
    assert names(final) == ["new"]
    assert names(tmp_path) == ["set"]


def test_removing_a_folder_never_leaves_half_of_it_under_its_name(tmp_path):
    final = tmp_path / "set"

    def fill() -> None:
        if not final.exists():
            with atomic.new_folder(final) as temporary:
                for name in "abc":
                    (temporary / name).write_text(name)

    found = found_after_kills(
        fill,
        lambda: atomic.remove_folder(final),
        lambda: "".join(names(final)) if final.exists() else "",
    )
    assert set(found) == {"abc", ""}
    atomic.sweep_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_sweeping_takes_leftovers_and_nothing_else(tmp_path):
    (tmp_path / ".tmp-a").write_text("")
    (tmp_path / ".trash-b").mkdir()
    (tmp_path / ".trash-b" / "x").write_text("")
    (tmp_path / "tmp-c").write_text("")
    assert atomic.sweep_leftovers(tmp_path) == [".tmp-a", ".trash-b"]
    assert names(tmp_path) == ["tmp-c"]
    assert atomic.sweep_leftovers(tmp_path / "absent") == []


def test_a_symlink_is_moved_in_one_step(tmp_path):
    for target in ("a", "b"):
        (tmp_path / target).mkdir()
        (tmp_path / target / "name").write_text(target)
    link = tmp_path / "link"
    first, second = (partial(atomic.replace_symlink, link, target) for target in ("a", "b"))
    found = found_after_kills(first, second, (link / "name").read_text)
    assert (found[-1], set(found)) == ("b", {"a", "b"})
