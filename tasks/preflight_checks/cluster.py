"""Preflight's look at a Ray that is joined: may we, and do its machines see the run's folders?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.system.network import why_unreachable
from rl_core.system.process_env import environment_of_child
from rl_core.workers.ray_auth import RAY_CLUSTER_FILE, address_of_auto, mode_for
from tasks.preflight_checks.finding import Finding, fatal, ok, refused

_ASK_MACHINES: Final = "from rl_core.workers.nodes import main; main()"
_MACHINES_WITHIN_S: Final = 60.0


def cluster_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what is wrong with `resources.ray_address`."""
    wanted, variable = config.resources.ray_address, os.environ.get("RAY_ADDRESS")
    if wanted is None:
        if variable:
            yield ok(
                "ray",
                f"RAY_ADDRESS={variable} is not used, the run starts a Ray of its own "
                f"(resources.ray_address={variable} would use it)",
            )
        return
    try:
        address = address_of_auto() if wanted == "auto" else wanted
        finding = _silence(wanted, address)
        if finding is None:
            mode_for(wanted)
            finding = _machines(config, wanted)
    except ValueError as error:
        finding = refused("ray", error)
    if finding is not None:
        yield finding


def _silence(wanted: str, address: str | None) -> Finding | None:
    """Returns a finding if nothing answers there."""
    why: str | None = "ray start was not called here"
    if address is not None:
        is_asked = ":" in address and "//" not in address
        why = why_unreachable(f"ray://{address}") if is_asked else None
    if why is None:
        return None
    if wanted != "auto":
        return fatal(
            "ray",
            f"resources.ray_address={wanted} does not answer ({why})",
            "start the cluster, or leave it out for a Ray of the run's own",
        )
    found = f", which means {address}," if address else ""
    is_noted = address is not None and "RAY_ADDRESS" not in os.environ
    return fatal(
        "ray",
        f"resources.ray_address=auto{found} finds no Ray ({why})",
        "leave it out for a Ray of the run's own, or `ray start --head`"
        + (f" after removing {RAY_CLUSTER_FILE}" if is_noted else ""),
    )


def _machines(config: RunConfig, address: str) -> Finding | None:
    """Returns which machine has another program than this one, or does not see its folders."""
    folders, model = [config.storage.root], Path(config.model.path or "-").expanduser()
    if (model / "config.json").is_file():
        folders.append(model)
    seen = [str(folder.resolve()) for folder in folders]
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_MACHINES, address, *seen],
            capture_output=True,
            text=True,
            timeout=_MACHINES_WITHIN_S,
            env=environment_of_child("ray"),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return fatal(
            "ray",
            f"resources.ray_address={address} cannot be joined from here",
            "start the run on one of Ray's machines, or use `ray job submit`",
        )
    return refused("ray", asked.stdout.strip()) if asked.stdout else None
