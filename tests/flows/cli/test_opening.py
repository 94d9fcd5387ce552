"""`open`: a report or Prefect's pages, in a browser or in words."""

import stat
from pathlib import Path

import pytest

from flows.cli.serve_status import serving, shown_as_up
from tests.support.programs import cli as in_process
from tests.support.programs import own_prefect
from tests.support.runs import new_run


@pytest.fixture
def no_screen(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


def test_a_report_is_written_anew_and_its_path_printed(cli, tmp_path, no_screen):
    run = new_run(tmp_path, "night")
    (run.path / "report.html").write_text("<script>a stranger's</script>")
    assert cli("open", "night").out == f"{run.path / 'report.html'}\n"
    assert "a stranger's" not in (run.path / "report.html").read_text()
    assert "no run 'nobody'" in cli("open", "nobody", code=2).err


def test_a_browser_gets_it(cli, tmp_path, no_screen, monkeypatch):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    run = new_run(tmp_path, "night")
    cli("open")
    opened = (tmp_path / "opened").read_text().strip()
    assert Path(opened.removeprefix("file://")) == run.path / "report.html"


def test_over_ssh_it_says_how_to_see_it_from_there(cli, tmp_path, no_screen, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    new_run(tmp_path, "night")
    path, how = cli("open", "night").out.splitlines()
    assert how.startswith("on your own machine: scp ")
    assert how.endswith(f"@10.0.0.2:{path} .")


@pytest.mark.slow
def test_the_ui_of_a_serve_that_is_up(tmp_path, monkeypatch):
    over_ssh = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}
    environment = own_prefect(tmp_path, is_new=True) | over_ssh
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        environment.pop(name, None)
    (tmp_path / "serve").mkdir()
    none = in_process("open", "ui", env=environment)
    assert (none.returncode, "no server is up" in none.stderr) == (1, True)
    with shown_as_up(tmp_path, "http://127.0.0.1:4299/api"):
        url, how = in_process("open", "ui", env=environment).stdout.splitlines()
        away = in_process("serve", "status", env=environment)
    assert url == "http://127.0.0.1:4299"
    assert "ssh -L 4299:127.0.0.1:4299 " in how
    assert away.returncode == 1
    assert "its server does not answer at http://127.0.0.1:4299/api" in away.stderr
    assert serving(tmp_path) is None
    down = in_process("serve", "status", env=environment)
    assert down.returncode == 1
    assert "serve is not up: countdown-train serve starts it" in down.stderr
