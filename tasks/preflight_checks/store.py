"""The object store of a run: whether it can be written, asked before anything else starts."""

from __future__ import annotations

from collections.abc import Iterator

from rl_core.config.operations import StorageConfig
from rl_core.storage.object_store import why_unusable
from tasks.preflight_checks.finding import Finding


def store_findings(storage: StorageConfig) -> Iterator[Finding]:
    """Yields what is to be said of `storage.url`, where there is one."""
    if storage.url is None:
        return
    found = why_unusable(storage.url)
    if found is not None:
        yield Finding("storage", "fatal", *found)
    else:
        yield Finding("storage", "ok", f"{storage.url} can be written, by way of {storage.root}")
