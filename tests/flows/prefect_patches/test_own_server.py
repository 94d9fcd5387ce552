"""Prefect's clients against a server that lies, of another account and of this one."""

import os
import socket
from pathlib import Path

import pytest

from flows.prefect_patches.own_server import with_plain_loopback
from tests.support.programs import Done, own_prefect, python
from tests.support.ray_head import free_ports
from tests.support.strangers import NOBODY, fake_prefect_as, only_root
from tests.support.waiting import wait_for

LOGIN = "countdown-train:secret"
CLIENTS = """
import anyio, sys
from prefect import flow, get_client
from prefect.client.subscriptions import Subscription
from prefect.events import emit_event
from prefect.events.clients import PrefectEventsClient
from prefect.events.schemas.events import Event
from prefect.logging.clients import get_logs_subscriber
from prefect._internal.version_checking import check_server_version

@flow
def nothing():
    return 1

async def ask():
    async with get_client() as client:
        await client.read_flows()

async def send():
    resource = {"prefect.resource.id": "x"}
    async with PrefectEventsClient(reconnection_attempts=0) as client:
        await client.emit(Event(event="x", resource=resource))

async def listen():
    async with get_logs_subscriber() as subscriber:
        await anext(subscriber)

def now():
    with get_client(sync_client=True) as client:
        client.read_flows()

for use in (nothing, now, *(lambda f=f: anyio.run(f) for f in (ask, send, listen))):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""
HYDRATE = """
import anyio
import prefect.states
from prefect.client.schemas.objects import State
from prefect.results import ResultStore, aget_default_result_storage, get_default_result_storage
from tests.support import fake_prefect as fake
from flows import countdown_train

prefect.states.RESULT_READ_RETRY_DELAY = 0  # it tries ten times

def states():
    for kind in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        for serializer in ({"type": "pickle"}, {"type": "compressed/pickle"}):
            data = {**fake.state(kind), "data": fake.record(serializer)}
            yield State.model_validate(data)
            data["data"]["storage_block_id"] = None
            yield State.model_validate(data)
            data["data"]["storage_key"] = "/etc/hostname"
            yield State.model_validate(data)

async def read():
    for state in states():
        yield await state.aresult(raise_on_failure=False, retry_result_failure=False)

def attempts():
    for state in states():
        yield lambda: state.result(raise_on_failure=False, retry_result_failure=False)
        yield lambda: state.result(retry_result_failure=False)
        yield lambda: anyio.run(lambda: state.aresult(raise_on_failure=False))
    yield lambda: ResultStore().read(fake.KEY)
    yield lambda: anyio.run(ResultStore().aread, fake.KEY)
    yield lambda: get_default_result_storage().read_path(fake.KEY)

for attempt in attempts():
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error)
"""


def victim(code: str, port: int, home: Path, *, plugin: bool = True, **more: str) -> Done:
    """Runs code with a login, as it is in the environment of workers and of their runs."""
    settings = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": LOGIN,
        "PREFECT_CLIENT_MAX_RETRIES": "0",
        "PREFECT_PLUGINS_ENABLED": str(plugin).lower(),
        **more,
    }
    return python(code, env=own_prefect(home, is_new=True) | settings, timeout_s=300)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@only_root
@pytest.mark.slow
def test_no_client_sends_another_users_server_a_byte(tmp_path):
    (port,) = free_ports(1)
    with fake_prefect_as(NOBODY, port) as fake:
        wait_for(lambda: answers(port))
        done = victim(CLIENTS, port, tmp_path / "home")
        assert fake.requests == []
    assert "Traceback" not in done.stdout
    assert done.stdout.count(f"127.0.0.1:{port}") >= 4, done.stdout + done.stderr


@pytest.mark.slow
def test_the_same_clients_use_a_server_of_this_account_and_unpickle_nothing(tmp_path):
    (port,) = free_ports(1)
    with fake_prefect_as(os.geteuid(), port) as fake:
        wait_for(lambda: answers(port))
        done = victim(CLIENTS, port, tmp_path / "home")
        paths = {request["path"].removeprefix("/api") for request in fake.requests}
        assert not fake.has_run_code
    assert {"/flows/", "/flows/filter", "/events/in", "/logs/out"} <= paths
    assert "which a server names, is not read" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [True, False])
def test_no_result_is_unpickled_because_a_server_says_where_it_is(tmp_path, plugin):
    (port,) = free_ports(1)
    with fake_prefect_as(os.geteuid(), port) as fake:
        wait_for(lambda: answers(port))
        storage = {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(fake.folder)}
        done = victim(HYDRATE, port, tmp_path / "home", plugin=plugin, **storage)
        assert not fake.has_run_code
    assert "a result that is a pickle is not read" in done.stdout, done.stderr
    assert "which a server names, is not read" in done.stdout
    assert done.stdout.count("/etc/hostname is outside of the base path") == 24, done.stdout


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://localhost:4200/api", "http://127.0.0.1:4200/api"),
        ("http://LOCALHOST/api", "http://127.0.0.1/api"),
        ("http://me:pass@localhost:1/api", "http://me:pass@127.0.0.1:1/api"),
        ("http://localhost.example:4200/api", "http://localhost.example:4200/api"),
        ("http://[::1]:4200/api", "http://[::1]:4200/api"),
        ("https://api.prefect.cloud/api/localhost", "https://api.prefect.cloud/api/localhost"),
    ],
)
def test_localhost_is_one_address(url, plain):
    assert with_plain_loopback(url) == plain
