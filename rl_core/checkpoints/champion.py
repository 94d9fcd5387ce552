"""Champion: the best checkpoint of all runs on a set of problems, and the earlier ones.

    <storage.root>/champions/countdown-1a2b3c4d5e6f.json  one per set of test problems

How a checkpoint becomes champion is in `rl_core.evaluation.promotion`.
"""

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from rl_core.checkpoints.manifest import MANIFEST, model_digest
from rl_core.config.operations import protocol_of
from rl_core.system.plain_files import read_json
from rl_core.system.words import in_one_line

_RUN: Final = "[A-Za-z0-9][A-Za-z0-9._-]*"
"""What `run_id` may be: a file that another wrote names no folder outside of `storage.root`."""


class Contender(BaseModel, frozen=True, extra="forbid"):
    """An evaluated checkpoint that is, was or may become champion."""

    run_id: str = Field(pattern=f"^{_RUN}$")
    step: int
    checkpoint: str = Field(pattern=rf"^runs/{_RUN}/checkpoints/step_\d+$")
    """Its folder, relative to `storage.root`."""
    model_digest: str
    accuracy: float
    """On the test problems, decoded as `evaluation` says."""
    num_problems: int
    evaluation: dict[str, Any]
    """Everything that its evaluation rows depend on, except the model."""
    rows: str
    """File of these rows, relative to `storage.root`."""

    @property
    def protocol(self) -> str:
        """How the responses that count were decoded, see `EvaluationConfig`."""
        return protocol_of(self.evaluation)

    @property
    def name(self) -> str:
        """The checkpoint as a person writes it: `RUN/step_000100`."""
        return f"{self.run_id}/{Path(self.checkpoint).name}"


class PromotedContender(Contender):
    """A contender's time as champion."""

    promoted_at: str
    reason: str
    """What it was better than, with the numbers of the test."""


class Champion(BaseModel, frozen=True, extra="forbid"):
    """The content of a champion's file."""

    env: str
    problems: str
    """Digest of all test problems, which also names the file."""
    current: PromotedContender
    history: tuple[PromotedContender, ...] = ()
    """Earlier champions, the oldest first."""

    def is_there(self, root: Path) -> bool:
        """Returns whether the champion's checkpoint is still in its place, unchanged."""
        folder = root / self.current.checkpoint
        return (folder / MANIFEST).is_file() and model_digest(folder) == self.current.model_digest


def champion_file(root: Path, env: str, problems: str) -> Path:
    """Returns the file that names the champion of a set of problems, whether it exists or not."""
    return root / "champions" / f"{env}-{problems[:12]}.json"


def read_champion(file: Path) -> Champion | None:
    """Returns the champion that a file names, None without a file; ValueError if it is damaged."""
    try:
        return Champion.model_validate(read_json(file))
    except FileNotFoundError:
        return None
    except ValueError as error:
        reason = in_one_line(error)
        raise ValueError(f"{file} does not name a champion: delete it ({reason})") from error


def all_champions(root: Path) -> list[Champion]:
    """Returns the champions of all sets of problems, the one promoted last at the end."""
    champions = [read_champion(file) for file in sorted((root / "champions").glob("[!.]*.json"))]
    return sorted((c for c in champions if c is not None), key=lambda c: c.current.promoted_at)


def champion_steps(run_folder: Path) -> frozenset[int]:
    """Returns the steps of a run's checkpoints that are champions, which nothing may delete.

    ValueError if a file of `champions/` cannot be read: what it protects is not known.
    """
    return frozenset(
        champion.current.step
        for champion in all_champions(run_folder.parent.parent)
        if champion.current.run_id == run_folder.name
    )
