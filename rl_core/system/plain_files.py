"""Files that another may have written: opened and read so that none leads elsewhere or hangs.

A run's folder, a preset, a model's JSON: what is wrong with a file is a ValueError of one line that
names it; FileNotFoundError means that there is none. JSON and YAML are plain trees here: `DEEPEST`
at most, integers of 64 bits, finite numbers, and text that can be written as UTF-8.
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import date
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.system.words import cut, in_one_line, printable

MOST_BYTES: Final = 16 * 2**20
"""The largest text that is read whole, unless the caller says otherwise."""
MOST_YAML_BYTES: Final = 2**20
"""The same for YAML, which takes many times as long to read."""
DEEPEST: Final = 20
"""Lists and mappings within each other; what this program writes has fewer than ten."""
_LONGEST_REASON: Final = 200
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_LONG_NUMBER: Final = re.compile(r"[-+.:_0-9]{100,}")
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 40 times as fast


class _Loader(_Safe):  # type: ignore[misc]  # one of two classes
    """Refuses a name that is given twice, of which YAML's own loader takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def open_plain(path: Path, *, below: Path | None = None, follow: bool = False) -> BufferedReader:
    """Opens a regular file for reading; if the last part of its path is a link, only to `follow`.

    A file that the user named may be a link; one that was found in a folder may not.

    With `below`, a folder above it (itself a link or not), no part of the path under that folder
    may be a link, and the file must belong to the folder's owner: so another's folder leads to no
    file of ours, be it by a hard link. PermissionError if something of this is wrong.
    """
    parent = below or path.parent
    *folders, name = path.relative_to(parent).parts
    assert ".." not in (*folders, name), path
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # so that a pipe without a writer opens
    with ExitStack() as opened:

        def descriptor(part: str | Path, more: int, above: int | None = None) -> int:
            number = os.open(part, flags | more, dir_fd=above)
            opened.callback(os.close, number)
            return number

        folder = descriptor(parent, os.O_DIRECTORY)
        owner = os.fstat(folder).st_uid
        try:
            for part in folders:
                folder = descriptor(part, os.O_DIRECTORY | os.O_NOFOLLOW, folder)
            number = descriptor(name, 0 if follow else os.O_NOFOLLOW, folder)
        except (FileNotFoundError, PermissionError) as error:
            error.filename = str(path)
            raise
        except OSError as error:  # ELOOP, ENOTDIR: a link; ENXIO: a socket
            raise _refused(path, "is a link, is behind one, or is no plain file") from error
        info = os.fstat(number)
        if not stat.S_ISREG(info.st_mode):
            raise _refused(path, "is no plain file")
        if below is not None and info.st_uid != owner:
            raise _refused(path, f"belongs to user {info.st_uid}, its folder to {owner}")
        return os.fdopen(os.dup(number), "rb")


def read_plain(
    path: Path,
    *,
    below: Path | None = None,
    follow: bool = False,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """Returns the bytes of a file that `open_plain` opens.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it cannot be read, or is larger than `most_bytes`.
    """
    try:
        with open_plain(path, below=below, follow=follow) as file:
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _wrong(path, error.strerror or error) from error
    if len(content) > most_bytes:
        raise _wrong(path, f"is larger than {most_bytes:,} bytes, and no more is read")
    return content


def read_json(
    path: Path,
    *,
    below: Path | None = None,
    follow: bool = False,
    most_bytes: int = MOST_BYTES,
    deepest: int = DEEPEST,
    finite: bool = True,
) -> Any:
    """Returns what a JSON file holds; see `read_plain` and `parse_json`."""
    return parse_json(
        read_plain(path, below=below, follow=follow, most_bytes=most_bytes),
        path,
        deepest=deepest,
        finite=finite,
    )


def read_json_lines(path: Path, *, most_bytes: int) -> Iterator[tuple[str, Any]]:
    """Yields each line that is JSON, of a file that may not lead elsewhere, and what it holds.

    None if the file cannot be read; a line that a crash cut short is left out.
    """
    content = b""
    with suppress(FileNotFoundError, ValueError):
        content = read_plain(path, below=path.parent, most_bytes=most_bytes)
    for line in content.decode(errors="replace").splitlines():
        with suppress(ValueError):
            yield line, parse_json(line)


def parse_json(
    text: str | bytes, what: object = "the text", *, deepest: int = DEEPEST, finite: bool = True
) -> Any:
    """Returns what a JSON text holds; `finite` refuses NaN and Infinity.

    ValueError begins with `what` the text is, such as its file.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _wrong(what, f"is nested deeper than {deepest}") from None
    except ValueError as error:
        raise _wrong(what, f"is not JSON ({error})") from None
    _check_tree(value, what, deepest=deepest, finite=finite)
    return value


def read_yaml(path: Path, *, below: Path | None = None, follow: bool = False) -> Any:
    """Returns what a YAML file holds; see `read_plain` and `parse_yaml`."""
    return parse_yaml(
        read_plain(path, below=below, follow=follow, most_bytes=MOST_YAML_BYTES), path
    )


def parse_yaml(text: str | bytes, what: object = "the text") -> Any:
    """Returns what a YAML text of one document holds; refuses tags (`!!`) and aliases (`*`).

    Aliases can make a file of 1 kB as large as the memory, or a list that holds itself; and too
    many brackets end the process in libyaml's own code, so both are looked for first. ValueError
    begins with `what` the text is.
    """
    try:
        _check_events(text)
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or error
        raise _wrong(what, f"is not YAML ({reason}{where})") from None
    except (ValueError, OverflowError) as error:  # 2026-99-99; an integer of 5,000 digits
        raise _wrong(what, f"holds a value that cannot be read ({error})") from None
    _check_tree(value, what, deepest=DEEPEST, finite=True)
    return value


def _check_events(text: str | bytes) -> None:
    depth = 0
    event: Any  # of types without a common place for their marks
    for event in yaml.parse(text, Loader=_Loader):
        where = f"in line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"an alias, *{event.anchor}, {where}: write the value out")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"the tag {event.tag} {where}: leave it out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} {where}")
        if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
            raise ValueError(f"a number of {len(event.value):,} characters {where}")


def _check_tree(tree: Any, what: object, *, deepest: int, finite: bool) -> None:
    """Raises ValueError for a value in a tree that would stop a later reader or writer."""
    level = [tree]
    for _ in range(deepest + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif (reason := _wrong_value(value, finite)) is not None:
                raise _wrong(what, f"holds {reason}")
        if not inner:
            return
        level = inner
    raise _wrong(what, f"is nested deeper than {deepest}")


def _wrong_value(value: object, finite: bool) -> str | None:
    if isinstance(value, str):
        return "half of a surrogate pair" if _HALF_PAIR.search(value) else None
    if isinstance(value, float):
        is_wrong = finite and not math.isfinite(value)
        return f"{value}, where a finite number is needed" if is_wrong else None
    if isinstance(value, date):
        return f"{value}, a date: put it into quotes"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "an integer of more than 64 bits"
    return None


def _wrong(what: object, reason: object) -> ValueError:
    return ValueError(printable(f"{what} {cut(in_one_line(reason), _LONGEST_REASON)}"))


def _refused(path: Path, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, str(path))
