"""The command `countdown-train import`: a launch script becomes a preset, a console log a run."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.runs.lookup import where_and_others
from flows.settings.compose import compose
from rl_core.storage.mirror import mirrored
from rl_core.system.atomic import write_text_atomically
from rl_core.system.words import cut, printable
from rl_core.tracking.diagnosis import diagnose
from tasks.importers.console_log import Log, import_log, other_trainer, read_log, read_text
from tasks.importers.launch_script import NoSettingsError, import_script
from tasks.report_page.failures import Failure, find_failure, is_of_a_program

_PLAIN: Final = re.compile(r"[\w./=-]+", re.ASCII)  # what Hydra reads without quotes


def import_file(words: Sequence[str]) -> None:
    """Reads one script or log, and says what is wrong with it."""
    files = [word for word in words if "=" not in word]
    if len(files) != 1:
        raise BadInputError("import takes one FILE: a launch script, or a console log")
    settings = [word for word in words if "=" in word]
    file = Path(files[0])
    try:
        text = read_text(file)
    except OSError as error:
        raise BadInputError(f"{file} cannot be read: {error.strerror}") from None
    try:
        if (log := read_log(text)).runs:
            _import_log(file, text, log, settings)
        elif (whose := other_trainer(text, "log")) is not None:
            raise BadInputError(
                f"a log of {whose} is not read: docs/coming-from.md has a table of its settings "
                "and ours"
            )
        elif is_of_a_program(text):
            _say_failure(find_failure(text))
        else:
            _import_script(file, text, _variables(settings))
    except ValueError as error:
        raise BadInputError(f"{file}: {error}") from None


def _say_failure(failure: Failure | None) -> None:
    if failure is None:
        raise BadInputError("a log without a step, and without an error: nothing to import")
    say(f"failed     {failure.says}\nlog says   {failure.line}\ntry        {failure.remedy}")


def _import_log(file: Path, text: str, log: Log, given: list[str]) -> None:
    if other := where_and_others(given)[1]:
        raise BadInputError(f"{other[0]!r}: a log takes only run_id, storage.root and storage.url")
    config = compose(given)
    run_id = config.run_id or re.sub(r"[^A-Za-z0-9._-]+", "-", f"imported-{file.stem}")
    with mirrored(config.storage, run_id):
        run = import_log(file, root=config.storage.root, run_id=run_id)
    rows = run.metrics.read()
    say(f"{run.path}: steps {rows[0]['step']} to {rows[-1]['step']}")
    if (num_runs := len(log.runs)) > 1:
        say(
            f"{num_runs} runs are in the file (steps begin again at {min(log.rows)}): this is the "
            "last of them; for another, cut the file"
        )
    if log.unread:
        shown = ", ".join(f"{name}={cut(text, 40)}" for name, text in [*log.unread.items()][:5])
        say(f"not read   {len(log.unread)} metrics that are no numbers: {printable(shown)}")
    if (failure := find_failure(text)) is not None:
        _say_failure(failure)
    for diagnosis in diagnose(rows):
        say(f"diagnosis  {diagnosis}")
    say(f"try next   countdown-train report {run_id}")


def _variables(words: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if re.fullmatch(r"\w+", name) is None:
            raise BadInputError(
                f"{word!r} is no variable of a script, NAME=VALUE: a setting goes to "
                f"countdown-train run preset=FILE.yaml {word}"
            )
        if name in variables:
            raise BadInputError(f"{name} is given twice: {word!r} too")
        variables[name] = value
    return variables


def _import_script(file: Path, text: str, variables: dict[str, str]) -> None:
    prefix = "imported-" if file.suffix == ".yaml" else ""  # a recipe, which stays as it is
    output = Path(variables.pop("output", f"{prefix}{file.stem}.yaml"))
    if output.exists():
        raise BadInputError(f"{output} exists already: choose another name with output=FILE")
    try:
        imported = import_script(text, variables, os.environ)
    except NoSettingsError:
        if (failure := find_failure(text)) is None:
            raise
        _say_failure(failure)
        return
    for finding in imported.findings:
        say(f"{finding.check:9}{'!' if finding.level == 'warning' else ' '} {finding}")
    write_text_atomically(output, imported.preset(file.name))
    say(f"\n{output}: {len(imported.settings)} settings")
    preset = f"preset={output}"
    if _PLAIN.fullmatch(preset) is None:
        preset = f"preset='{output}'"
    try:
        compose([preset])
    except BadInputError as error:
        say(f"to be mended in it: {error}")
    say(f"try next   countdown-train preflight {shlex.quote(preset)}")
