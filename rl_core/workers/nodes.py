"""Checks that Ray's machines have the driver's program and see its folders; else ValueError.

A model, a checkpoint or a log reaches another machine only by a folder that both see.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_core.errors import last_line
from rl_core.workers.ray_auth import send_token
from rl_core.workers.session import options_of_cluster

_SOURCES: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Software:
    """The version of rl_core on a machine."""

    sources: str
    """A digest of rl_core's source files: it differs between two states of one checkout, too."""
    folder: str
    """The folder that holds rl_core."""


def software() -> Software:
    """Returns the version that this process runs."""
    digest = hashlib.sha256()
    for file in sorted(_SOURCES.rglob("*.py")):
        digest.update(file.relative_to(_SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    return Software(digest.hexdigest()[:12], str(_SOURCES))


def refuse_other(ours: Software, theirs: Software, machine: str) -> None:
    """Raises ValueError if another machine has another version of this project."""
    if theirs.sources != ours.sources:
        raise ValueError(
            f"{machine} has another rl_core ({theirs.sources}, in {theirs.folder}) than this one "
            f"({ours.sources}): install the same version on all machines"
        )


def own_node() -> str:
    """Returns Ray's id of this machine."""
    return str(ray.get_runtime_context().get_node_id())


def check_nodes(nodes: Iterable[str], folders: Iterable[Path]) -> None:
    """Raises ValueError if a machine, by Ray's ids, lacks our version or does not see a folder."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    ours = software()
    with _marked(folders) as marks:
        answers = {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            answers[node] = _look.options(scheduling_strategy=there).remote(marks)
        for node, answer in answers.items():
            machine = f"Ray's machine {addresses.get(node, node)}"
            try:
                theirs, unseen = answer.future().result()
            except RayTaskError as error:
                why = last_line(error.cause)
                raise ValueError(
                    f"{machine} cannot load rl_core ({why}): install there what is installed here, "
                    "and start its Ray from that environment"
                ) from error
            refuse_other(ours, theirs, machine)
            if unseen:
                raise ValueError(
                    f"{machine} does not see {unseen[0].parent} of this one: put storage.root, "
                    "model.path and HF_HOME into a folder that all machines mount at the same path"
                )


@contextmanager
def _marked(folders: Iterable[Path]) -> Iterator[dict[Path, int]]:
    """Yields a file of each folder with its size: a machine that sees it sees the folder."""
    with ExitStack() as stack:
        marks = [folder / "config.json" for folder in folders]
        for i, mark in enumerate(marks):
            if not mark.is_file():
                made = stack.enter_context(NamedTemporaryFile(prefix=".seen-", dir=mark.parent))
                marks[i] = Path(made.name)
        yield {mark: mark.stat().st_size for mark in marks}


def _look_around(marks: dict[Path, int]) -> tuple[Software, list[Path]]:
    """Runs on another machine; returns what it has, and the marks that it does not see."""
    unseen = [x for x, size in marks.items() if not x.is_file() or x.stat().st_size != size]
    return software(), unseen


_look: Any = ray.remote(num_cpus=0)(_look_around)


def main() -> None:
    """Prints one line on what is wrong with a cluster's machines, or nothing.

    Preflight runs this in a process of its own: one that has joined a Ray keeps its token.
    """
    address, *folders = sys.argv[1:]
    try:
        send_token(address)
        ray.init(**options_of_cluster(address), logging_level="ERROR")
        nodes = {x["NodeID"] for x in ray.nodes() if x["Alive"] and x["Resources"].get("CPU")}
        check_nodes(nodes - {own_node()}, map(Path, folders))
    except ValueError as error:
        sys.stdout.write(f"{error}\n")
