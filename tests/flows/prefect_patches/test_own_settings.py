"""ATTACKS by the working folder: `.env`, `prefect.toml` and `pyproject.toml` that Prefect reads."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import Done, own_prefect, python, run
from tests.support.traps import set_traps, sprung

PROGRAM = Path(sys.executable).with_name("countdown-train")
PROFILES = """
active = "mine"
[profiles.mine]
PREFECT_FLOWS_HEARTBEAT_FREQUENCY = "77"
"""
READ = """
import json
from flows.prefect_patches.own_settings import ignore_working_folder
{first}
ignore_working_folder()
ignore_working_folder()
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings
refresh_global_settings_context()
settings = get_current_settings()
print(json.dumps({{
    "vacuum": settings.server.services.db_vacuum.retention_period.total_seconds(),
    "advertises": settings.server.ui.show_promotional_content,
    "plugins": settings.plugins.enabled,
    "logging": settings.logging.config_path.name,
    "heartbeat": settings.flows.heartbeat_frequency,
    "api": settings.api.url,
}}))
"""
SERVER = """
import sys
from flows.prefect_patches.own_settings import ignore_working_folder
ignore_working_folder()
from flows.prefect_patches.private_server import start_private_server
server = start_private_server()
server.connect()
from prefect import get_client
with get_client(sync_client=True) as client:
    print(client.hello().json())
"""


def called(home: Path, cwd: Path, *words: str) -> Done:
    environment = own_prefect(home, is_new=True)
    return run(PROGRAM, *words, f"storage.root={home / 'out'}", cwd=cwd, env=environment)


@pytest.mark.parametrize(
    "words",
    [("preflight",), ("generate", "data.train_size=256", "data.test_size=16"), ("runs",)],
    ids=lambda words: words[0],
)
def test_a_command_executes_nothing_of_the_working_folder(words, tmp_path):
    done = called(tmp_path, set_traps(tmp_path / "cwd"), *words)
    assert done.returncode == 0, done.stderr
    assert sprung(tmp_path / "cwd") == ""


@pytest.mark.parametrize("first", ["", "import prefect"], ids=["before Prefect", "after it"])
def test_the_checkouts_and_the_users_settings_count_in_any_folder(first, tmp_path):
    home, cwd = tmp_path / "home", set_traps(tmp_path / "cwd")
    home.mkdir()
    (home / "profiles.toml").write_text(PROFILES)
    environment = own_prefect(home, is_new=True) | {"PYTHONSAFEPATH": "1"}
    done = python(READ.format(first=first), cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "vacuum": 7_776_000,
        "advertises": False,
        "plugins": True,
        "logging": "logging.yml",  # the traps have other names
        "heartbeat": 77,
        "api": None,
    }
    assert first or sprung(cwd) == ""


@pytest.mark.slow
def test_a_private_server_executes_nothing_of_the_working_folder(tmp_path):
    cwd = set_traps(tmp_path / "cwd")
    done = python(SERVER, cwd=cwd, env=own_prefect(tmp_path / "home") | {"PYTHONSAFEPATH": "1"})
    assert done.stdout == "👋\n", done.stderr
    assert sprung(cwd) == ""
