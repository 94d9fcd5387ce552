"""The command `countdown-train export CHECKPOINT to=FOLDER`: a model for others, and a hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.runs.lookup import take_arguments, where_and_others
from flows.settings.compose import compose
from rl_core.checkpoints.store import reading_sound
from rl_core.system.words import in_one_line
from tasks.export import DTYPES, check_push, export_model, push_folder
from tasks.queries.checkpoint_names import find_model
from tasks.storage import bring_model

_ARGUMENTS: Final = ("to", "dtype", "push")


def export(words: Sequence[str]) -> None:
    """Writes the folder, and pushes it if that is asked for.

    Raises:
        BadInputError: no such checkpoint, no folder to write, or nothing to push to.
    """
    named = [word for word in words if "=" not in word]
    given, settings = take_arguments([word for word in words if "=" in word], _ARGUMENTS)
    if len(named) != 1 or "to" not in given:
        raise BadInputError("export takes a CHECKPOINT (such as best, or RUN/best) and to=FOLDER")
    dtype = given.get("dtype", "bfloat16")
    if dtype not in DTYPES:
        raise BadInputError(f"dtype={dtype} is not {', '.join(DTYPES)}")
    if other := where_and_others(settings)[1]:
        raise BadInputError(f"{other[0]!r}: export takes {', '.join(_ARGUMENTS)} and storage.root")
    try:
        if "push" in given:
            check_push(given["push"])
        where = compose(settings)
        bring_model(where.storage, named[0], where.run_id)
        root = where.storage.root
        model = find_model(named[0], root, run_id=where.run_id or "latest")
        with reading_sound(model.folder):
            folder = export_model(model, root, dtype=dtype, to=Path(given["to"]).expanduser())
        say(f"{model.name} as {dtype}: {folder}")
        if "push" in given:
            say(push_folder(folder, given["push"]))
    except ValueError as error:
        raise BadInputError(in_one_line(error)) from error
