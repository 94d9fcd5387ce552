"""compose.yaml: who knows and sees what, and its commands and health checks without containers."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.harness import ROOT, stop
from tests.support.postgresql import postgresql
from tests.support.ray_head import free_ports
from tests.support.waiting import wait_for

FILE = ROOT / "deployments" / "compose.yaml"
PASSWORD = "a-password-that-nothing-may-tell"
LOGIN = "countdown-train:a-login-that-nothing-may-tell"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(FILE.read_text())["services"])


def test_ports_are_seen_from_this_machine_alone_unless_the_user_says_otherwise(services):
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports == [
        "${BIND:-127.0.0.1}:${PREFECT_PORT:-4200}:4200",
        "127.0.0.1:${TENSORBOARD_PORT:-6006}:6006",  # it has no login
    ]  # neither the database's nor Ray's
    assert not [name for name, service in services.items() if "network_mode" in service]


def test_the_password_is_known_to_database_and_server_alone(services):
    told = [name for name, service in services.items() if "POSTGRES_PASSWORD" in str(service)]
    assert told == ["database", "server"]
    assert not [name for name, service in services.items() if "env_file" in service]


def test_prefect_never_starts_without_a_login(services):
    server, worker = (services[name]["environment"] for name in ("server", "worker"))
    login = server["PREFECT_SERVER_API_AUTH_STRING"]
    assert login.startswith("${PREFECT_SERVER_API_AUTH_STRING:?")  # Compose refuses none, or empty
    assert worker["PREFECT_API_AUTH_STRING"] == login
    origin = server["PREFECT_SERVER_UI_API_URL"].removesuffix("/api")
    assert server["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] == origin
    assert server["PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"] == "true"


def test_each_container_has_the_rights_of_its_user_only_and_a_health_check(services):
    for name, service in services.items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert name == "database" or service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service
        assert "healthcheck" in service, name


def test_the_first_start_makes_passwords_for_its_user_alone_and_keeps_them(tmp_path):
    """`docker` is a stand-in that notes how it was called."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "deployments").mkdir()
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    secrets = tmp_path / "deployments" / ".env"
    secrets.write_text("RAY_AUTH_TOKEN=" + 64 * "0")  # of an older version, without a line feed
    texts = []
    for words in (["up"], ["up", "GPU=1"]):
        subprocess.run(["make", *words], cwd=tmp_path, env=env, check=True, capture_output=True)
        texts.append(secrets.read_text())
    assert texts[0] == texts[1]
    found = dict(line.split("=") for line in texts[0].splitlines())
    assert found.pop("RAY_AUTH_TOKEN") == 64 * "0"
    login = found.pop("PREFECT_SERVER_API_AUTH_STRING")
    assert re.fullmatch("countdown-train:[0-9a-f]{64}", login)
    assert re.fullmatch("[0-9a-f]{64}", found.pop("POSTGRES_PASSWORD"))
    assert not found
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    plain, cuda = (tmp_path / "called").read_text().splitlines()
    assert plain == "compose --file deployments/compose.yaml up --build --detach --wait"
    assert "--file deployments/compose.cuda.yaml up" in cuda
    ignored = subprocess.run(["git", "check-ignore", "-q", "deployments/.env"], cwd=ROOT)
    assert ignored.returncode == 0


def _value(given: Any) -> str:
    """Returns a value as Compose hands it on: `$$` is a dollar."""
    return "" if given is None else str(given).replace("$$", "$")


def _words(given: list[str]) -> list[str]:
    """Returns a command, or a check's after its CMD, with this environment's programs."""
    words = [_value(word) for word in given]
    return words[1:] if words[0] == "CMD" else words


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_server_and_worker_start_by_these_commands_and_get_healthy(services, tmp_path):
    (port,) = free_ports(1)
    with postgresql() as url:
        database = urlsplit(url)
        where = {
            "PREFECT_SERVER_DATABASE_HOST": database.hostname or "",
            "PREFECT_SERVER_DATABASE_PORT": str(database.port),
            "PREFECT_SERVER_DATABASE_NAME": database.path[1:],
            "PREFECT_SERVER_DATABASE_PASSWORD": PASSWORD,
            "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api",
        }
        own = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        own |= {"PREFECT_HOME": str(tmp_path / "prefect")}
        started = []

        def start(name: str, environment: Mapping[str, str]) -> None:
            service = services[name]
            given = {key: _value(text) for key, text in service["environment"].items()}
            given = {key: text for key, text in given.items() if text and "${" not in text}
            full = {**own, **given, **environment}
            command = [
                "127.0.0.1" if word == "0.0.0.0" else word  # a container's own
                for word in _words(service["command"])
            ]
            with (tmp_path / f"{name}.out").open("w") as log:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=full, stdout=log, stderr=log, start_new_session=True
                )
            started.append(process)
            check = [
                word.replace(":4200", f":{port}") for word in _words(service["healthcheck"]["test"])
            ]
            wait_for(
                lambda: subprocess.run(check, env=full, capture_output=True).returncode == 0,
                process=process,
                poll_s=1,
            )

        try:
            start("server", where)
            api = f"http://127.0.0.1:{port}/api"
            start("worker", {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": LOGIN})
        finally:
            for process in reversed(started):
                stop(process)
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        for secret in (PASSWORD, LOGIN):
            assert secret.encode() not in file.read_bytes(), file
