"""Prefect plugin: servers have a login, clients know it, and bare deployment names are found.

Prefect calls `setup_environment` whenever it is imported with `[tool.prefect.plugins] enabled =
true`; outside of the repository after `prefect config set PREFECT_PLUGINS_ENABLED=true`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from prefect.plugins import HookContext, register_hook

from flows.prefect_patches import login
from flows.prefect_patches.own_server import obey_own_server_only, with_plain_loopback
from flows.prefect_patches.server_process import IN_A_SERVER
from rl_core.system.network import spare_loopback


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Prepares this process, a server or a client of one; refuses a server without a login."""
    from prefect.settings import get_current_settings

    spare_loopback()
    settings = get_current_settings()
    starts_a_server = "server start" in " ".join(sys.argv)
    is_server = starts_a_server or IN_A_SERVER in os.environ
    if settings.api.url is not None:
        os.environ["PREFECT_API_URL"] = with_plain_loopback(settings.api.url)
    if starts_a_server:
        try:
            safe = login.server_environment(settings)
        except (OSError, ValueError) as error:
            raise SystemExit(f"no server without a login: {error}") from None
        os.environ.update(safe)
        if login.SERVER_AUTH_STRING in safe:
            sys.stderr.write(
                f"login: the page asks once, `cat {login.login_file(settings.home)}`\n"
            )
    if is_server:
        _lock_before_reading()
        list_newest_artifacts_first()
    else:
        try:
            obey_own_server_only()
        except Exception as error:  # Prefect continues without a plugin that fails
            raise SystemExit(f"no client without a look at its server's owner: {error}") from error
        if settings.api.auth_string is None and (
            known_login := login.login_for(ctx.api_url, settings)
        ):
            os.environ[login.AUTH_STRING] = known_login
    if Path(sys.argv[0]).stem == "prefect" and "deployment" in sys.argv:
        accept_bare_names()


def _lock_before_reading() -> None:
    """Makes a server on SQLite lock the database at the start of each transaction.

    Prefect locks at the first change. If another transaction has written since the first read,
    SQLite refuses at once, whatever the timeout: `database is locked`, several times a minute.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def begin_immediate(
        configuration: AioSqliteConfiguration, session: Any, with_for_update: bool = False
    ) -> Any:
        return begin(configuration, session, with_for_update=True)

    setattr(AioSqliteConfiguration, "begin_transaction", begin_immediate)  # noqa: B010  # mypy: a method


def list_newest_artifacts_first() -> None:
    """Makes a server number artifacts by time, not at random: its pages sort by these numbers."""
    from prefect._internal.uuid7 import uuid7
    from prefect.server.schemas.core import Artifact

    Artifact.model_fields["id"].default_factory = uuid7
    Artifact.model_rebuild(force=True)


def accept_bare_names() -> None:
    """Lets `PrefectClient.read_deployment_by_name` find a bare name that one deployment has."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.filters import DeploymentFilter
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.exceptions import ObjectNotFound

    by_full_name = PrefectClient.read_deployment_by_name

    async def by_any_name(client: PrefectClient, name: str) -> DeploymentResponse:
        if "/" not in name:
            named = DeploymentFilter.model_validate({"name": {"any_": [name]}})
            deployments = await client.read_deployments(deployment_filter=named)
            if len(deployments) != 1:
                problem = f"{len(deployments)} deployments are called {name!r}"
                raise ObjectNotFound(ValueError(problem), problem)
            flow = await client.read_flow(deployments[0].flow_id)
            name = f"{flow.name}/{name}"
        return await by_full_name(client, name)

    setattr(PrefectClient, "read_deployment_by_name", by_any_name)  # noqa: B010  # mypy: a method
