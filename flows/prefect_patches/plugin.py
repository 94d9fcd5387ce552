"""Prefect plugin: `prefect deployment run countdown-train` works without the flow's name before it.

Prefect names a deployment FLOW/DEPLOYMENT. With `[tool.prefect.plugins] enabled = true`, and
outside of the repository after `prefect config set PREFECT_PLUGINS_ENABLED=true`, this module is
asked at every start of Prefect; only the `prefect deployment` command is changed by it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.plugins import HookContext, register_hook

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Teaches the client bare deployment names, in the process of `prefect deployment` only."""
    if Path(sys.argv[0]).stem == "prefect" and "deployment" in sys.argv:
        accept_bare_names()


def accept_bare_names() -> None:
    """Lets `PrefectClient.read_deployment_by_name` find a bare name, where it is unique."""
    from prefect.client.orchestration import PrefectClient

    by_full_name = PrefectClient.read_deployment_by_name

    async def by_any_name(client: PrefectClient, name: str) -> DeploymentResponse:
        return await by_full_name(client, await _full_name(client, name))

    setattr(PrefectClient, "read_deployment_by_name", by_any_name)  # noqa: B010  # mypy: a method


async def _full_name(client: PrefectClient, name: str) -> str:
    """Returns FLOW/DEPLOYMENT for a bare name that one deployment has.

    Raises:
        ObjectNotFound: no deployment or several have it; the command says so in a line.
    """
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
    from prefect.exceptions import ObjectNotFound

    if "/" in name:
        return name
    named = DeploymentFilter(name=DeploymentFilterName(any_=[name]))
    found = await client.read_deployments(deployment_filter=named)
    if len(found) != 1:
        problem = f"{len(found)} deployments are called {name!r}"
        raise ObjectNotFound(ValueError(problem), problem)
    flow = await client.read_flow(found[0].flow_id)
    return f"{flow.name}/{name}"
