import json
import logging
import re
import sys
from base64 import b64encode
from contextlib import suppress

import psutil
import pytest

from tasks import messages as module
from tasks.messages import Listeners, notify, warn_of_mistakes
from tests.support.listeners import SECRET, hook, rude_hook
from tests.support.programs import lives
from tests.support.waiting import wait_for

MESSAGE = {"event": "promoted", "run_id": "r", "accuracy_after": 0.5, "report": None}
_logger = logging.getLogger("tests.notify")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that any logger says, from DEBUG up."""
    caplog.set_level(logging.DEBUG)
    return caplog


def own(said: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without those of threads that an earlier test left behind."""
    return [record for record in said.records if record.name == _logger.name]


def tell(url: str | None = None, *command: str) -> None:
    notify(Listeners(url, command), MESSAGE, _logger)


def test_both_are_told_the_same_object(tmp_path, said):
    file = tmp_path / "told"
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    with hook() as server:
        tell(server.url, sys.executable, "-c", code, str(file))
    assert server.told == [MESSAGE] == [json.loads(file.read_text())]
    assert server.paths == [f"/services/{SECRET}?token={SECRET}"]
    assert server.users == [f"Basic {b64encode(f'user:{SECRET[:8]}@'.encode()).decode()}"]
    assert [record.message for record in own(said)] == [
        "the webhook was notified: promoted",
        f"the command {sys.executable} was notified: promoted",
    ]


@pytest.mark.parametrize(("status", "is_taken"), [(204, True), (302, False), (500, False)])
def test_an_answer_that_is_no_success_is_a_warning(said, status, is_taken):
    with hook(status) as server:
        tell(server.url)
    (record,) = own(said)
    assert len(server.told) == 1  # a redirect is not followed
    assert record.levelno == (logging.INFO if is_taken else logging.WARNING)
    assert is_taken or record.message.endswith(f"127.0.0.1 answered {status}")


@pytest.mark.parametrize(
    ("manners", "words"),
    [
        ("hangs", r"no answer within 0\.5 s"),
        ("drips", r"no answer within 0\.5 s"),
        ("resets", r"127\.0\.0\.1: (ConnectionReset|RemoteProtocol|Read)Error"),
    ],
)
def test_a_rude_server_costs_seconds_and_a_warning(said, monkeypatch, manners, words):
    monkeypatch.setattr(module, "WEBHOOK_S", 0.5)
    with rude_hook(manners) as server:
        tell(server.url)
    (record,) = own(said)
    assert re.fullmatch(f"the webhook was not notified of promoted: {words}", record.message)


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:1/{SECRET}",
        f"https://127.0.0.1:99999/{SECRET}",
        f"http://[::1/{SECRET}",
        "http://user:hunter2hunter2@a\u2100b/",
        f"http://127.0.0.1/a b\n{SECRET}",
        f"file:///etc/passwd?{SECRET}",
        f"hooks.example.com/services/{SECRET}",
        SECRET,
    ],
)
def test_no_word_of_a_url_is_logged_whatever_is_wrong_with_it(said, url):
    warn_of_mistakes(Listeners(url), _logger)
    tell(url)
    assert own(said)[-1].levelno == logging.WARNING
    assert not [part for part in SECRET.split("/") if part in said.text]
    assert SECRET not in repr(Listeners(url))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.close(0)", None),  # it does not care to read
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("import time; time.sleep(60)", "killed after 1 s"),
        ("import os, time; os.fork() or time.sleep(60)", None),  # leaves a child behind
    ],
)
def test_a_command_that_fails_is_a_warning(said, monkeypatch, code, why):
    monkeypatch.setattr(module, "COMMAND_S", 1.0)
    tell(None, sys.executable, "-c", code)
    (record,) = own(said)
    if why is None:
        assert record.levelno == logging.INFO
    else:
        assert record.message == f"the command {sys.executable} was not notified of promoted: {why}"


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMMAND_S", 1.0)
    pids = tmp_path / "pids"
    tell(None, "/bin/sh", "-c", f"sleep 60 & echo $! > {pids}; wait")
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(pids.read_text()))
        wait_for(lambda: not lives(child))


def test_no_such_command_is_said_beforehand(said):
    warn_of_mistakes(Listeners(command=("/no/such/program", "x")), _logger)
    tell(None, "/no/such/program", "x")
    beforehand, afterwards = said.records
    assert "will not be notified: there is no such program" in beforehand.message
    assert "FileNotFoundError" in afterwards.message
