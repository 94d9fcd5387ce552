import importlib.metadata
import logging

import anyio
import pytest
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.plugins import HookContext
from prefect.settings import PREFECT_HOME, temporary_settings

from flows.prefect_patches.login import login_file
from flows.prefect_patches.plugin import accept_bare_names, setup_environment
from tests.support.programs import python

CONTEXT = HookContext(prefect_version="3", api_url=None, logger_factory=logging.getLogger)


def test_the_entry_point_is_installed():
    (plugin,) = importlib.metadata.entry_points(group="prefect.plugins", name="countdown-train")
    assert plugin.load().setup_environment is setup_environment


@pytest.mark.parametrize(
    ("command", "is_changed"),
    [
        (["/bin/prefect", "deployment", "run", "x"], True),
        (["/bin/prefect", "--profile", "p", "deployment", "inspect", "x"], True),
        (["/bin/prefect", "worker", "start"], False),
        (["/x/countdown-train", "deployment"], False),
    ],
)
def test_only_the_deployment_command_is_changed(monkeypatch, command, is_changed):
    before = PrefectClient.read_deployment_by_name
    monkeypatch.setattr(PrefectClient, "read_deployment_by_name", before)
    monkeypatch.setattr("sys.argv", command)
    setup_environment(ctx=CONTEXT)
    assert (PrefectClient.read_deployment_by_name is not before) == is_changed


def test_no_server_starts_without_a_login(monkeypatch, tmp_path):
    """Prefect continues without a plugin that fails, unless that leaves by SystemExit."""
    login_file(tmp_path).symlink_to("/dev/null")
    monkeypatch.setattr("sys.argv", ["/bin/prefect", "--profile", "p", "server", "start"])
    with temporary_settings({PREFECT_HOME: tmp_path}), pytest.raises(SystemExit) as refused:
        setup_environment(ctx=CONTEXT)
    assert str(refused.value).startswith("no server without a login: ")


def test_a_server_numbers_artifacts_by_time_as_its_page_sorts_them():
    """In a process of its own, for nothing takes that back."""
    numbers = """
from flows.prefect_patches.plugin import list_newest_artifacts_first
list_newest_artifacts_first()
from prefect.server.schemas.core import Artifact
import time
made = []
for _ in range(20):
    made.append(str(Artifact(key="report").id))
    time.sleep(0.002)  # they are numbered by milliseconds
assert made == sorted(made), made
"""
    done = python(numbers)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_bare_name_is_found_where_it_is_unique(monkeypatch):
    @flow(name="one")
    def one() -> None: ...

    @flow(name="two")
    def two() -> None: ...

    async def deploy_and_read() -> None:
        async with get_client() as client:
            first = await client.create_flow(one)
            second = await client.create_flow(two)
            await client.create_deployment(flow_id=first, name="unique")
            await client.create_deployment(flow_id=first, name="twice")
            await client.create_deployment(flow_id=second, name="twice")
            assert (await client.read_deployment_by_name("unique")).flow_id == first
            assert (await client.read_deployment_by_name("one/unique")).flow_id == first
            assert (await client.read_deployment_by_name("two/twice")).flow_id == second
            for name in ("twice", "missing"):
                with pytest.raises(ObjectNotFound, match=f"deployments are called '{name}'"):
                    await client.read_deployment_by_name(name)

    before = PrefectClient.read_deployment_by_name
    monkeypatch.setattr(PrefectClient, "read_deployment_by_name", before)
    accept_bare_names()
    anyio.run(deploy_and_read)
