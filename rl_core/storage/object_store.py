"""One object store, with the few operations that a mirror needs (the only obstore import).

Credentials come only from the environment, as the store's own tools read them: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL; GOOGLE_*; AZURE_STORAGE_*. They are in no
setting, and no message here holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_core.system.redaction import redact
from rl_core.system.words import cut, in_one_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

_PART_BYTES: Final = 8 * 2**20
"""Of an upload in parts; smaller files are sent whole."""
_READ_BYTES: Final = 32 * 2**20
_LONGEST: Final = 240
_STATUS: Final = re.compile(r"status code: (\d{3}[\w ]*)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_GONE: Final = "there is no such bucket"
Version = dict[str, str]
"""What names one version of an object to its store: `e_tag`, and `version` where there is one."""


class StoreError(RuntimeError):
    """The store is gone, slow, or refuses a request."""


class Conflict(RuntimeError):  # noqa: N818  # what happened, as `WorkerDied`
    """An object is not the version that was expected: another process wrote it."""


@dataclass(frozen=True)
class Entry:
    """An object, as a listing shows it."""

    size: int
    e_tag: str | None


@dataclass(frozen=True)
class ObjectStore:
    """The objects below `s3://bucket/prefix`; their keys are relative to it.

    Each method raises a StoreError if the store does not answer or refuses.
    """

    url: str

    @cached_property
    def _store(self) -> Backend:
        from obstore.store import from_url

        options: Any = {
            "allow_http": True,  # if the user's endpoint is one
            "timeout": timedelta(seconds=60),
            "connect_timeout": timedelta(seconds=5),
        }
        # Of one request; the mirror tries again later.
        retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
        with _in_words(self.url):
            return from_url(self.url, client_options=options, retry_config=retries)

    def put(self, key: str, content: bytes | Path) -> str | None:
        """Writes an object whole or not at all, a file part by part, and returns its e-tag."""
        source = content.open("rb") if isinstance(content, Path) else BytesIO(content)
        with source, _in_words(self.url):
            put = self._store.put(key, source, chunk_size=_PART_BYTES, max_concurrency=4)
        return put["e_tag"]

    def put_if(self, key: str, content: bytes, expected: Version | None) -> Version:
        """Writes an object if it still is the version that was read, and returns the new one.

        With `expected=None` there must be none yet. Conflict if another version is there: if a
        reply was lost, it may be the one just written.
        """
        mode: Any = "create" if expected is None else expected
        with _in_words(self.url):
            return _version(self._store.put(key, content, mode=mode))

    def read(self, key: str) -> tuple[bytes, Version] | None:
        """Returns an object's content and version, or None if there is none."""
        with suppress(FileNotFoundError), _in_words(self.url, may_be_missing=True):
            response = self._store.get(key)
            return bytes(response.bytes()), _version(response.meta)
        return None

    def download(self, key: str, entry: Entry, target: Path) -> None:
        """Writes an object to a file; Conflict or FileNotFoundError if it is not the listed one."""
        with target.open("wb") as file:
            for start in range(0, entry.size, _READ_BYTES):
                options: Any = {"range": (start, min(start + _READ_BYTES, entry.size))}
                if entry.e_tag is not None:
                    options["if_match"] = entry.e_tag
                with _in_words(self.url, may_be_missing=True):
                    part = self._store.get(key, options=options).bytes()
                file.write(part)

    def list(self, prefix: str = "") -> dict[str, Entry]:
        """Returns the objects below a prefix (of whole path parts) by their keys."""
        with _in_words(self.url):
            return {
                entry["path"]: Entry(entry["size"], entry["e_tag"])
                for page in self._store.list(prefix or None)
                for entry in page
            }

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes objects; those that are not there count as deleted."""
        if names := list(keys):
            with _in_words(self.url):
                self._store.delete(names)


def why_unusable(url: str) -> tuple[str, str] | None:
    """Returns what keeps a store from being written and its remedy, or None if a write works."""
    store = ObjectStore(url)
    probe = "locks/.probe"
    try:
        store.put(probe, b"")
        store.delete([probe])
    except StoreError as error:
        if _GONE in str(error):
            return f"storage.url={url}: {_GONE}", "make it, or name another"
        return str(error), (
            "start it, or correct its variables in the environment (AWS_ACCESS_KEY_ID, AWS_REGION, "
            "AWS_ENDPOINT_URL and the like: docs/operations.md)"
        )
    return None


@contextmanager
def _in_words(url: str, *, may_be_missing: bool = False) -> Iterator[None]:
    """Turns obstore's errors into ours, one line each, but for an object that `may_be_missing`."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise Conflict(_line(error)) from None
    except FileNotFoundError as error:
        is_bucket = _NO_BUCKET.search(str(error)) is not None
        if may_be_missing and not is_bucket:
            raise FileNotFoundError(_line(error)) from None
        raise StoreError(f"{url}: {_GONE if is_bucket else _line(error)}") from None
    except (exceptions.BaseError, TimeoutError, ConnectionError) as error:
        raise StoreError(f"{url}: {_line(error)}") from None


def _line(error: Exception) -> str:
    """Returns an error in one line, without addresses that may hold a signature."""
    text = str(error).partition("Debug source:")[0]
    status = _STATUS.search(text)
    code = _CODE.search(text)
    if status:
        return " ".join(filter(None, (status[1].strip(), code and code[1])))
    return cut(redact(re.sub(r"\?\S+", "", in_one_line(text))), _LONGEST)


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}
