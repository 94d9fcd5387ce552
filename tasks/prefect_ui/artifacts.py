"""Artifacts for the Prefect UI, which a run can do without: no server can stop or slow it."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Literal, ParamSpec
from uuid import UUID

from httpx import HTTPError
from prefect import artifacts, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException

from rl_core.errors import first_line
from rl_core.system.printable import printable

ArtifactKind = Literal["progress", "image", "markdown"]

ARTIFACT_INTERVAL_S = 2.0
_INTERVALS_S: Final[Mapping[ArtifactKind, float]] = {
    "progress": ARTIFACT_INTERVAL_S,
    "image": 30.0,
    "markdown": 30.0,
}
"""Seconds between two updates of an artifact, at least."""
_LAST_UPDATE_S = 5.0
"""Seconds that the end of training waits for its last update."""
_PUNCTUATION: Final = re.compile(r"[!-/:-@\[-`{-~]")
_LOOK_ALIKES: Final = str.maketrans("<>", "\u2039\u203a")
_P = ParamSpec("_P")
_logger = logging.getLogger(__name__)


def _unless_away(create: Callable[_P, object]) -> Callable[_P, None]:
    """Returns `create`, but that it warns where the server is away."""

    @wraps(create)
    def create_or_warn(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            create(*args, **kwargs)
        except (HTTPError, PrefectException) as error:
            _warn(str(kwargs.get("key")), error)

    return create_or_warn


create_image_artifact = _unless_away(artifacts.create_image_artifact)
create_markdown_artifact = _unless_away(artifacts.create_markdown_artifact)
create_table_artifact = _unless_away(artifacts.create_table_artifact)


_CREATE: Final[Mapping[ArtifactKind, Callable[..., object]]] = {
    "progress": artifacts.create_progress_artifact,
    "image": artifacts.create_image_artifact,
    "markdown": artifacts.create_markdown_artifact,
}


def beside(call: Callable[[], object]) -> None:
    """Makes a call to the Prefect server beside whatever goes on; nobody waits for it."""
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(call,), daemon=True).start()


def plain(text: str) -> str:
    """Returns text of unknown origin for a table's cell, which one of Prefect's UIs takes for HTML.

    It would load the images and leave out the tags in it; the other UI shows cells as they are, so
    angle brackets become those of quotations and a link is taken apart.
    """
    return text.translate(_LOOK_ALIKES).replace("](", "] (")


def quoted(text: str) -> str:
    """Returns text of unknown origin as a quotation in markdown, in which nothing means anything.

    Every character that could is escaped, which both of Prefect's UIs understand; of code blocks
    the one wraps no line, and the other shows white on white.
    """
    return "\n".join(f"> {_literal(line)}  " for line in text.split("\n"))


def _literal(line: str) -> str:
    shown = printable(line)
    indent = len(shown) - len(shown.lstrip(" "))
    return "\u00a0" * indent + _PUNCTUATION.sub(r"\\\g<0>", shown[indent:])


@dataclass(frozen=True)
class _Pending:
    kind: ArtifactKind
    make: Callable[[], Any]
    description: str


class LiveArtifacts:
    """Artifacts of one task run that a thread keeps up to date.

    Made inside a flow or task run, whose artifacts they become. What is shown is made by the thread
    too, so that neither work nor a server that hangs is in anybody's way.
    """

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._made: dict[str, UUID] = {}
        self._not_before: dict[str, float] = {}
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._update,), daemon=True
        )
        self._thread.start()

    def show(self, key: str, kind: ArtifactKind, make: Callable[[], Any], description: str) -> None:
        """Shows this soon, unless something newer comes before.

        Args:
            key: the artifact's name in the UI.
            kind: what Prefect shall take it for.
            make: returns what is shown; None leaves the artifact as it is.
            description: the line above it.
        """
        with self._changing:
            self._pending[key] = _Pending(kind, make, description)

    def close(self) -> None:
        """Shows what is not shown yet, if the server answers."""
        self._closing.set()
        self._thread.join(_LAST_UPDATE_S)

    def _update(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(ARTIFACT_INTERVAL_S)
            for key in list(self._pending):
                if is_closing or time.monotonic() >= self._not_before.get(key, 0.0):
                    with self._changing:
                        pending = self._pending.pop(key)
                    self._show(key, pending)

    def _show(self, key: str, pending: _Pending) -> None:
        try:
            data = pending.make()
            if data is not None:
                self._send(key, pending, data)
        except (HTTPError, PrefectException) as error:
            _warn(key, error)
        except (OSError, ValueError) as error:
            _logger.warning("the artifact %s could not be made: %s", key, first_line(error))
        self._not_before[key] = time.monotonic() + _INTERVALS_S[pending.kind]

    def _send(self, key: str, pending: _Pending, data: Any) -> None:
        if key not in self._made:
            made = _CREATE[pending.kind](data, key=key, description=pending.description)
            assert isinstance(made, UUID)
            self._made[key] = made
            return
        # Prefect's own way to update would keep a copy of the data in an event, each time.
        update = ArtifactUpdate(data=data, description=pending.description)
        get_client(sync_client=True).request(
            "PATCH",
            "/artifacts/{id}",
            path_params={"id": self._made[key]},
            json=update.model_dump(mode="json", exclude_unset=True),
        )


def _warn(key: str, error: Exception) -> None:
    _logger.warning("the Prefect server did not take the artifact %s: %s", key, first_line(error))
