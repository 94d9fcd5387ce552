"""Messages: one JSON object to a webhook and to a command's standard input; neither can fail a run.

A webhook's URL is a secret: no line of a log, no error and no artifact holds more than its host.
"""

import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx

from rl_core.system.log_file import Log
from tasks.prefect_ui.artifacts import in_background

WEBHOOK_S: Final = 10.0  # seconds, all in all, that a webhook may take to answer
COMMAND_S: Final = 60.0
_BLOCK_NAME: Final = re.compile(r"[a-z0-9-]+")
_THREAD: Final = "notify"

for _library in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    # They log whole URLs, and what the peer answers.
    logging.getLogger(_library).addFilter(lambda record: record.threadName != _THREAD)


@dataclass(frozen=True)
class Listeners:
    """Who is notified."""

    webhook: str | None = field(default=None, repr=False)
    """A URL, or better the name of an environment variable or a Prefect Secret block with it."""
    command: tuple[str, ...] = ()  # a program and its arguments, no shell


def plain_message(event: str, reason: str) -> dict[str, Any]:
    """Returns a message without a night and a run, such as that of `notify test`."""
    return {
        "event": event,
        "run_id": None,
        "reason": reason,
        "due": None,
        "host": platform.node(),
        "flow_run": None,
        "missed": None,
        "text": f"the night {event}: {reason}",
    }


def notify(listeners: Listeners, message: Mapping[str, Any], log: Log) -> None:
    """Notifies all listeners, and logs a line on each: a warning if it was not reached."""
    for who, refusal in deliver(listeners, message).items():
        if refusal is None:
            log.info("%s was notified: %s", who, message["event"])
        else:
            log.warning("%s was not notified of %s: %s", who, message["event"], refusal)


def deliver(listeners: Listeners, message: Mapping[str, Any]) -> dict[str, str | None]:
    """Notifies all listeners; returns for each one None, or why it was not reached."""
    text = json.dumps(message)
    refusals: dict[str, str | None] = {}
    if listeners.webhook is not None:
        refusals["the webhook"] = _with_url(listeners.webhook, partial(_post, body=text.encode()))
    if command := listeners.command:
        refusals[f"the command {command[0]}"] = _run(command, text)
    return refusals


def warn_of_mistakes(listeners: Listeners, log: Log) -> None:
    """Warns of listeners that cannot be notified, before there is a message."""
    webhook = listeners.webhook
    if webhook is not None and (mistake := _with_url(webhook, lambda url: None)) is not None:
        log.warning("the webhook will not be notified: %s", mistake)
    if (command := listeners.command) and shutil.which(command[0]) is None:
        log.warning("the command %s will not be notified: there is no such program", command[0])


def webhook_url(webhook: str) -> str:
    """Returns the URL given or named by a variable or Secret block; ValueError without a secret."""
    url = webhook if "://" in webhook else os.environ.get(webhook)
    if not url and _BLOCK_NAME.fullmatch(webhook):  # not, for example, a URL without its scheme
        from prefect.blocks.system import Secret

        with suppress(Exception):  # no such block, no server
            url = str(Secret.load(webhook).get())  # type: ignore[union-attr]  # no coroutine here
    if not url:
        raise ValueError(
            "it is neither a URL nor names an environment variable of the worker or a Prefect "
            "Secret block"
        )
    try:
        scheme = httpx.URL(url).scheme
    except httpx.InvalidURL:  # its message quotes the part that is wrong
        raise ValueError("its URL cannot be read") from None
    if scheme not in ("http", "https"):
        raise ValueError("its URL must begin with https:// or http://")
    return url


def _with_url(webhook: str, act: Callable[[str], str | None]) -> str | None:
    """Returns what `act` returns for the URL, or why there is no URL.

    It runs in a thread, which is abandoned after `WEBHOOK_S`: an HTTP client's own limit holds for
    each read, and not for the look-up of a host's name.
    """
    outcome: list[str | None] = []

    def attempt() -> None:
        try:
            outcome.append(act(webhook_url(webhook)))
        except ValueError as error:
            outcome.append(str(error))

    in_background(attempt, _THREAD).join(WEBHOOK_S)
    return outcome[0] if outcome else f"no answer within {WEBHOOK_S:g} s"


def _post(url: str, body: bytes) -> str | None:
    """Posts `body`; returns None, or why that failed, without the URL."""
    host = httpx.URL(url).host
    try:
        # No redirect is followed (it would turn the POST into a GET), and no body is read.
        with httpx.stream(
            "POST",
            url,
            content=body,
            headers={"Content-Type": "application/json", "User-Agent": "countdown-train"},
            timeout=2 * WEBHOOK_S,
        ) as answer:
            return None if answer.is_success else f"{host} answered {answer.status_code}"
    except Exception as error:  # noqa: BLE001  # whatever a peer's bytes lead to
        cause: BaseException = error
        while cause.__context__ is not None:  # httpx's own errors say less than the socket's
            cause = cause.__context__
        return f"{host}: {type(cause).__name__}"  # its text may hold the URL


def _run(command: tuple[str, ...], text: str) -> str | None:
    """Runs a command; returns None, or how it failed. After `COMMAND_S`, its group is killed."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A user's script may import what is in its folder.
            env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
            start_new_session=True,
            text=True,
        )
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    try:
        process.communicate(text, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"killed after {COMMAND_S:g} s"
    return f"exit code {process.returncode}" if process.returncode else None
