import json
import sys
from pathlib import Path

import pytest

from flows.cli import serve as module
from flows.cli.main import run_command
from tests.support.listeners import hook


def said(folder: Path, monkeypatch: pytest.MonkeyPatch, **night: object) -> int:
    file = folder / "night.yaml"
    file.write_text(json.dumps(night))
    monkeypatch.setattr(module, "NIGHT_FILE", file)
    return run_command(["notify", "test"])


def test_a_message_comes_to_all_whom_the_file_names(tmp_path, monkeypatch, capsys):
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    command = [sys.executable, "-c", code, str(tmp_path / "told")]
    with hook() as server:
        monkeypatch.setenv("NIGHT_HOOK", server.url)
        assert said(tmp_path, monkeypatch, webhook="NIGHT_HOOK", command=command) == 0
    (told,) = server.told
    assert told["event"] == "test"
    assert told == json.loads((tmp_path / "told").read_text())
    assert capsys.readouterr().out.splitlines() == [
        "the webhook: got the message",
        f"the command {sys.executable}: got the message",
    ]


def test_who_did_not_get_it_is_an_error_and_so_is_nobody(tmp_path, monkeypatch, capsys):
    with hook(500) as server:
        monkeypatch.setenv("NIGHT_HOOK", server.url)
        assert said(tmp_path, monkeypatch, webhook="NIGHT_HOOK") == 1
    assert "the webhook: 127.0.0.1 answered 500" in capsys.readouterr().out
    assert said(tmp_path, monkeypatch) == 2
    assert "names no webhook and no command" in capsys.readouterr().err
