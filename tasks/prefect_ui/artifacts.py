"""Artifacts for the Prefect UI. A run does not need them: no server can stop it or slow it down.

Prefect is imported when one is shown: `watch` and `report` read a run's files without it.
"""

import contextvars
import json
import logging
import math
import re
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

from rl_core.errors import first_line
from rl_core.system.redaction import redact, redact_all
from rl_core.system.words import printable

_Kind = Literal["progress", "markdown", "table"]

_ARTIFACT_INTERVAL_S = 2.0
_INTERVALS_S: Final[Mapping[_Kind, float]] = {
    "progress": _ARTIFACT_INTERVAL_S,
    "markdown": 30.0,
}
"""Seconds between two updates of an artifact, at least."""
_LAST_UPDATE_S = 5.0  # seconds that the end of training waits for its last update
_PUNCTUATION: Final = re.compile(r"[!-/:-@\[-`{-~]")
_LOOK_ALIKES: Final = str.maketrans("<>", "\u2039\u203a")
_WIDEST_CELL: Final = 30  # characters; Prefect's page wraps no cell of a table
_LONGEST_WORD: Final = 36  # a setting's name stays whole; a longer word is broken
_STARTS_A_BLOCK: Final = re.compile(r"[-+*#>=~`]|\d+[.)]")
_logger = logging.getLogger(__name__)


def create_markdown_artifact(
    markdown: str, *, key: str, description: str, is_first: bool = False
) -> None:
    """Shows a page in place of an earlier one of its key; `is_first`: above those of task runs."""
    with unless_away(f"the artifact {key}"):
        _put("markdown", redact(markdown), key, redact(description), is_first)


def create_table_artifact(rows: Sequence[Mapping[str, Any]], *, key: str, description: str) -> None:
    """Shows a table, in place of an earlier one of this flow run and key."""
    shown = fitted(redact_all(list(rows)))  # first: wrapping would split a credential
    with unless_away(f"the artifact {key}"):
        _put("table", shown, key, redact(description))


def fitted(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows with all columns: numbers rounded, lists as text, long texts wrapped."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: _in_a_cell(row.get(name)) for name in names} for row in rows]


def _in_a_cell(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return _in_a_cell(", ".join(str(_in_a_cell(one)) for one in value))
    if not isinstance(value, str):
        return value
    width = max(_WIDEST_CELL, min(max(map(len, value.split()), default=0), _LONGEST_WORD))
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) for line in value.split("\n"))
    # A line that begins like a list or a heading would be shown as one.
    return "\n".join(
        f"\u200b{line}" if _STARTS_A_BLOCK.match(line) else line
        for wrapped in lines
        for line in wrapped or [""]
    )


def in_background(call: Callable[[], object], name: str | None = None) -> threading.Thread:
    """Returns a daemon thread that calls it, as a part of the same Prefect run."""
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(call,), name=name, daemon=True)
    thread.start()
    return thread


def plain(text: str) -> str:
    """Returns text of unknown origin for a table's cell, its angle brackets and links disarmed.

    One of Prefect's two UIs reads a cell as HTML, the other shows it unchanged.
    """
    return text.translate(_LOOK_ALIKES).replace("](", "] (")


def quoted(text: str) -> str:
    """Returns text of unknown origin as a quotation in markdown, with each mark escaped.

    Not a code block: one of Prefect's two UIs does not wrap it, the other shows it white on white.
    """
    lines = []
    for line in map(printable, text.split("\n")):
        indent = len(line) - len(line.lstrip(" "))
        lines.append("> " + "\u00a0" * indent + _PUNCTUATION.sub(r"\\\g<0>", line[indent:]) + "  ")
    return "\n".join(lines)


def dialogue(head: str, question: str, answered: str) -> str:
    """Returns a question and a model's answer as markdown."""
    return f"### {head}\n\nAsked:\n\n{quoted(question)}\n\nAnswered:\n\n{quoted(answered)}"


class LiveArtifacts:
    """Artifacts of the current flow or task run, which a thread keeps up to date.

    The thread also makes their content, so neither that nor a server that hangs delays training. It
    calls `refresh` now and then, which may show something.
    """

    def __init__(self, refresh: Callable[[], None] = lambda: None) -> None:
        self._refresh = refresh
        self._pending: dict[str, tuple[_Kind, Callable[[], Any], str]] = {}
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._not_before: dict[str, float] = {}
        self._thread = in_background(self._update, "live artifacts")

    def show(self, key: str, kind: _Kind, make: Callable[[], Any], description: str) -> None:
        """Shows what `make` returns (None: nothing) soon, unless a newer one comes first."""
        with self._changing:
            self._pending[key] = kind, make, description

    def close(self) -> None:
        """Shows what is not shown yet, if the server answers."""
        self._closing.set()
        self._thread.join(_LAST_UPDATE_S)

    def _update(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(_ARTIFACT_INTERVAL_S)
            if not is_closing:
                with suppress(OSError, ValueError):  # a terminal that is gone
                    self._refresh()
            for key in list(self._pending):
                if is_closing or time.monotonic() >= self._not_before.get(key, 0.0):
                    with self._changing:
                        kind, make, description = self._pending.pop(key)
                    self._show(key, kind, make, description)
                    self._not_before[key] = time.monotonic() + _INTERVALS_S[kind]

    def _show(self, key: str, kind: _Kind, make: Callable[[], Any], description: str) -> None:
        try:
            with unless_away(f"the artifact {key}"):
                if (data := make()) is not None:
                    _put(kind, redact_all(data), key, description)
        except (OSError, ValueError) as error:
            _logger.warning("the artifact %s could not be made: %s", key, first_line(error))


@contextmanager
def unless_away(what: str) -> Iterator[None]:
    """Warns if the Prefect server did not take what the block sends."""
    from httpx import HTTPError
    from prefect.exceptions import PrefectException

    try:
        yield
    except (HTTPError, PrefectException) as error:
        _logger.warning("the Prefect server did not take %s: %s", what, first_line(error))


def _put(kind: _Kind, data: Any, key: str, description: str, is_first: bool = False) -> None:
    """Creates an artifact, or updates an earlier attempt's: a flow run has one per key."""
    from prefect import get_client
    from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
    from prefect.client.schemas.filters import ArtifactFilter
    from prefect.utilities.context import get_task_and_flow_run_ids

    client = get_client(sync_client=True)
    task_run, flow_run = get_task_and_flow_run_ids()
    data = json.dumps(data) if kind == "table" else data
    if flow_run is not None:
        same_key = ArtifactFilter.model_validate(
            {"flow_run_id": {"any_": [flow_run]}, "key": {"any_": [key]}}
        )
        for earlier in client.read_artifacts(artifact_filter=same_key):
            # Prefect's own way to update would keep a copy of the data in an event.
            changes = ArtifactUpdate(data=data, description=description).model_dump(
                mode="json", exclude_unset=True
            )
            client.request("PATCH", "/artifacts/{id}", path_params={"id": earlier.id}, json=changes)
            return
    client.create_artifact(
        ArtifactCreate(
            type=kind,
            key=key,
            description=description,
            data=data,
            flow_run_id=flow_run,
            task_run_id=None if is_first else task_run,
        )
    )
