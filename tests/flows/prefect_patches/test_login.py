import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prefect.settings import PREFECT_HOME, Settings, get_current_settings, temporary_settings

from flows.prefect_patches.login import login_file, login_for, own_login, server_environment
from tests.support.ray_head import free_ports
from tests.support.strangers import NOBODY, listening_as, only_root

URL = "http://127.0.0.1:{}/api"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with temporary_settings({PREFECT_HOME: tmp_path}):
        yield get_current_settings()


def url_of(listener: socket.socket) -> str:
    return URL.format(listener.getsockname()[1])


def test_many_first_starts_make_one_login_that_only_its_user_can_read(tmp_path):
    home = tmp_path / "home"
    with ThreadPoolExecutor(16) as threads:
        logins = set(threads.map(own_login, [home] * 64))
    (login,) = logins
    name, _, password = login.partition(":")
    assert name == "countdown-train"
    assert len(password) >= 43  # 32 bytes
    assert stat.S_IMODE(login_file(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert own_login(tmp_path / "another") != login


def test_a_login_that_others_wrote_or_can_read_is_refused(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_text("known:to-all\n")
    file = login_file(tmp_path)
    file.symlink_to(foreign)
    with pytest.raises(ValueError, match="cannot be read"):
        own_login(tmp_path)
    file.unlink()
    file.write_text("known:to-all\n")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="readable by you only"):
        own_login(tmp_path)


def test_the_login_is_given_to_this_machines_servers_only(settings):
    (port,) = free_ports(1)
    assert login_for(URL.format(port), settings) is None  # there is none yet
    login = own_login(settings.home)
    for host in LOOPBACK:
        assert login_for(f"http://{host}:{port}/api", settings) == login
    for elsewhere in (None, "https://api.prefect.cloud/api", f"http://10.0.0.1:{port}/api"):
        assert login_for(elsewhere, settings) is None


@only_root
def test_another_users_server_on_the_port_is_not_told_the_login(settings):
    login = own_login(settings.home)
    with listening_as(os.geteuid()) as own:
        assert login_for(url_of(own), settings) == login
    with listening_as(NOBODY) as foreign:
        assert login_for(url_of(foreign), settings) is None


@only_root
@pytest.mark.parametrize("host", ["::1", "127.0.0.2"])
def test_the_very_address_counts_not_only_the_port(settings, host):
    """`localhost` is 127.0.0.1, whatever listens at the other addresses of this machine."""
    login = own_login(settings.home)
    for us, them in ((os.geteuid(), NOBODY), (NOBODY, os.geteuid())):
        with listening_as(us) as here:
            port = here.getsockname()[1]
            with listening_as(them, host, port):
                expected = login if us == os.geteuid() else None
                assert login_for(f"http://127.0.0.1:{port}/api", settings) == expected
                assert login_for(f"http://localhost:{port}/api", settings) == expected
                if host == "::1":
                    there = login_for(f"http://[::1]:{port}/api", settings)
                    assert there == (None if expected else login)


@only_root
@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_a_server_at_all_addresses_is_another_users_too(settings, everywhere):
    own_login(settings.home)
    with listening_as(NOBODY, everywhere) as foreign:
        assert login_for(url_of(foreign), settings) is None


def test_a_new_login_replaces_the_old_one_at_once(settings):
    login = own_login(settings.home)
    environment = server_environment(settings, renew=True)
    assert environment["PREFECT_SERVER_API_AUTH_STRING"] == own_login(settings.home) != login
    assert stat.S_IMODE(login_file(settings.home).stat().st_mode) == 0o600
    assert [path.name for path in settings.home.glob("tmp*")] == []


def test_what_the_user_set_for_a_server_stands(settings, monkeypatch):
    mine = server_environment(settings)
    assert mine.pop("PREFECT_SERVER_API_AUTH_STRING") == own_login(settings.home)
    origins = mine.pop("PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS").split(",")
    hosts = {f"http://{host}" for host in LOOPBACK}
    assert {origin.rpartition(":")[0] for origin in origins} == hosts
    assert mine == {"PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true"}
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:mine")
    monkeypatch.setenv("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "https://pages")
    monkeypatch.setenv("PREFECT_SERVER_CSRF_PROTECTION_ENABLED", "false")
    assert server_environment(Settings()) == {}
