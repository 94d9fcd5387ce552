"""Whether Ray's machines run the same program as the driver: else they are refused, in words."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayTaskError

from rl_core.system.versions import version_of
from rl_core.workers.node_files import on_node

_PACKAGES: Final = ("torch", "transformers", "vllm")
_SOURCES: Final = Path(__file__).parents[1]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Software:
    """What a machine would compute with."""

    sources: str
    """A digest of rl_core's, so that two states of one checkout are told apart, too."""
    packages: dict[str, str]
    """Versions without what says for which device: a machine without cards has another build."""
    folder: str
    """Where rl_core lies."""


def software() -> Software:
    """Returns this process's."""
    digest = hashlib.sha256()
    for file in sorted(_SOURCES.rglob("*.py")):
        digest.update(file.relative_to(_SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    found = {name: version_of(name) or version_of(f"{name}-cpu") for name in _PACKAGES}
    packages = {name: number.partition("+")[0] for name, number in found.items() if number}
    return Software(digest.hexdigest()[:12], packages, str(_SOURCES))


def compare(own: Software, theirs: Software, machine: str) -> list[str]:
    """Returns in words which packages another machine has otherwise than this one.

    Raises:
        ValueError: it has another version of this project.
    """
    if theirs.sources != own.sources:
        raise ValueError(
            f"{machine} has another rl_core ({theirs.sources}, in {theirs.folder}) than this one "
            f"({own.sources}): install the same version on all machines"
        )
    return [
        f"{machine} has {name} {theirs.packages.get(name)}, this one {number}: results may differ"
        for name, number in own.packages.items()
        if theirs.packages.get(name) != number
    ]


def check_software(nodes: Iterable[str]) -> None:
    """Asks machines by Ray's ids of them; other packages than here are a warning in the log.

    Raises:
        ValueError: one has another version of this project, or none.
    """
    own = software()
    asked = {node: _ask.options(scheduling_strategy=on_node(node)).remote() for node in nodes}
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    for node, answer in asked.items():
        machine = f"Ray's machine {addresses.get(node, node)}"
        try:
            theirs = answer.future().result()
        except RayTaskError as error:
            why = str(error.cause).strip().splitlines()[-1]  # below the other's traceback
            raise ValueError(
                f"{machine} cannot load rl_core ({why}): install there what is installed here, and "
                "start its Ray from that environment"
            ) from error
        for said in compare(own, theirs, machine):
            _logger.warning("%s", said)


_ask: Any = ray.remote(num_cpus=0)(software)
