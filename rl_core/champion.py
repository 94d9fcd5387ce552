"""CHAMPION: the best checkpoint of all runs on a set of problems, and those before it.

    <storage.root>/champions/countdown-1a2b3c4d5e6f.json  one per set of test problems

A checkpoint takes the place by being better than the champion on the very same problems, of which
`rl_core.evaluation_summary.compare` is the judge. Nothing here loads a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_core.atomic import locked, write_text_atomically
from rl_core.evaluation_summary import compare
from rl_core.manifest import MANIFEST, model_digest

Rows = Sequence[Mapping[str, Any]]


class Contender(BaseModel):
    """An evaluated checkpoint that is, was or may become champion."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run_id: str
    step: int
    checkpoint: str
    """Its folder, relative to `storage.root`."""
    model_digest: str
    accuracy: float
    """Greedy, on the test problems."""
    num_problems: int
    evaluation: dict[str, Any]
    """Everything but the model that its evaluation rows depend on."""
    rows: str
    """File of these rows, relative to `storage.root`."""

    @property
    def name(self) -> str:
        """The checkpoint as a person writes it: `RUN/step_000100`."""
        return f"{self.run_id}/{Path(self.checkpoint).name}"


class Reign(Contender):
    """A contender's time as champion."""

    promoted_at: str
    reason: str
    """What it was better than, with the numbers of the test."""


class Champion(BaseModel):
    """The content of a champion's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    env: str
    problems: str
    """Digest of all test problems, which also names the file."""
    current: Reign
    history: tuple[Reign, ...] = ()
    """Those before, the oldest first."""

    def is_there(self, root: Path) -> bool:
        """Says whether the champion's checkpoint still lies where it was, unchanged."""
        folder = root / self.current.checkpoint
        return (folder / MANIFEST).is_file() and model_digest(folder) == self.current.model_digest


@dataclass(frozen=True)
class Promotion:
    """What became of a contender."""

    is_champion: bool
    reason: str
    """In one sentence, for log, summary and report."""
    champion: Champion | None
    """Who holds the place now."""


def champion_file(root: Path, env: str, problems: str) -> Path:
    """Returns where the champion of a set of problems is named, there or not."""
    return root / "champions" / f"{env}-{problems[:12]}.json"


def read_champion(file: Path) -> Champion | None:
    """Returns the champion that a file names, None if there is none.

    Raises:
        ValueError: the file is not a champion's.
    """
    try:
        return Champion.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ValueError(f"{file} does not name a champion: delete it ({error})") from error


def all_champions(root: Path) -> list[Champion]:
    """Returns the champions of all sets of problems, the one promoted last at the end."""
    champions = [read_champion(file) for file in sorted((root / "champions").glob("[!.]*.json"))]
    return sorted((c for c in champions if c is not None), key=lambda c: c.current.promoted_at)


def champion_steps(run_folder: Path) -> frozenset[int]:
    """Returns the steps of a run's checkpoints that are champions, which nothing may delete.

    Args:
        run_folder: `<storage.root>/runs/<run_id>`.

    Raises:
        ValueError: a file of `champions/` cannot be read: what it protects is not known.
    """
    return frozenset(
        champion.current.step
        for champion in all_champions(run_folder.parent.parent)
        if champion.current.run_id == run_folder.name
    )


def promote(
    root: Path,
    contender: Contender,
    *,
    env: str,
    problems: str,
    now: str,
    rows: Rows,
    base_rows: Rows,
    champion_rows: Callable[[Reign], Rows | None],
) -> Promotion:
    """Makes a checkpoint champion if it is better, and says what became of it.

    Better than the champion on the same problems, and on no fewer than made it champion. Where
    there is none, or its files are gone, better than the contender's own base model: a model that
    learned nothing is no champion. One promotion at a time; a prune of the run waits meanwhile.

    Args:
        root: `storage.root`.
        contender: a checkpoint of a run.
        env: name of the problem family.
        problems: digest of the test problems.
        now: time of promotion, ISO 8601.
        rows: the contender's evaluation rows.
        base_rows: of its base model, likewise evaluated.
        champion_rows: returns the champion's rows, likewise evaluated; None where there are none.
    """
    file = champion_file(root, env, problems)
    checkpoint = root / contender.checkpoint
    with locked(file.parent), locked(checkpoint.parent):
        champion = read_champion(file)
        if not (checkpoint / MANIFEST).is_file():
            return Promotion(False, f"not promoted: {contender.name} is gone", champion)
        rival, rival_rows, gone = "its base model", base_rows, ""
        if champion is not None and champion.is_there(root):
            rival = f"the champion {champion.current.name}"
            if champion.current.model_digest == contender.model_digest:
                return Promotion(True, f"{champion.current.name} is the champion already", champion)
            asked = champion_rows(champion.current)
            if asked is None:
                why = f"not promoted: {rival} could not be asked the same problems"
                return Promotion(False, why, champion)
            rival_rows = asked
        elif champion is not None:
            gone = f"; the champion {champion.current.name} is gone from the disk"
        result = compare(rows, rival_rows)
        reason = result.against(rival) + gone
        if result.verdict != "better":
            return Promotion(False, f"not promoted: {reason}", champion)
        if champion is not None and not gone:
            needed = champion.current.num_problems
            if contender.num_problems < needed:
                reason += f", but the champion took its place by {needed} problems: ask as many"
                return Promotion(False, f"not promoted: {reason}", champion)
        reign = Reign(**contender.model_dump(), promoted_at=now, reason=reason)
        history = (*champion.history, champion.current) if champion else ()
        promoted = Champion(env=env, problems=problems, current=reign, history=history)
        write_text_atomically(file, promoted.model_dump_json(indent=2) + "\n")
    return Promotion(True, f"promoted: {reason}", promoted)
