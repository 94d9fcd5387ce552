"""The commands `countdown-train sql`, `runs` and `compare`: questions in SQL to the runs' files."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flows.cli.reply import give
from flows.cli.run_filters import filters_and_others, matching
from flows.cli.terminal import say, show_rows, terminal_width
from flows.errors import BadInputError
from rl_core.config.operations import StorageConfig
from rl_core.system.words import counted, in_one_line, printable
from tasks.queries.render import render_queries
from tasks.queries.saved_questions import list_queries
from tasks.queries.sql import ask, run_query, values_there

_PLAIN_ROOT: Final = re.compile(r"storage\.root=(?=.*/)([\w./-]+)")  # which Hydra reads as it is
_SELECT: Final = re.compile(r"\s*(SELECT|WITH|FROM|DESCRIBE|SUMMARIZE)\s", re.IGNORECASE)
_MOST_TEXTS: Final = 5  # notes, and next steps, of the newest runs
_MOST_ROWS = 60  # of an answer on a terminal: a night has a thousand steps


def sql(
    words: Sequence[str],
    *,
    select: str | None,
    lists: bool,
    run: str | None,
    parameters: Sequence[str],
    output_format: str,
) -> None:
    """Answers one question on standard output."""
    words, select = _words_and_select(words, select)
    root, named, names = _root_runs_and_names(words)
    questions = {query.name for query in list_queries()}
    if len(names) == 2 or (select is not None and names and names[0] not in questions):
        named.append(names.pop())
    named += [run] if run else []
    if len(named) > 1:
        raise BadInputError(f"sql takes one RUN, not {' and '.join(named)}")
    if lists:
        sys.stdout.write(render_queries(list_queries(), width=terminal_width()))
        return
    if len(names) + (select is not None) != 1:
        raise BadInputError("sql takes one NAME (sql --list lists them) or -q SELECT")
    if strange := [text for text in parameters if "=" not in text]:
        raise BadInputError(f"-p {strange[0]} is not KEY=VALUE")
    values = dict(text.split("=", 1) for text in parameters)
    of_run = next(iter(named), None)
    if select is not None:
        frame = run_query(select, values, root=root, run=of_run)
    else:
        frame = ask(names[0], values, root=root, run=of_run)
        if frame.is_empty():
            there = values_there(names[0], values, root=root, run=of_run)
            sys.stderr.write(f"{there}\n" if there else "")
    show_rows(frame, output_format, most_rows=_MOST_ROWS)


def _words_and_select(words: Sequence[str], select: str | None) -> tuple[Sequence[str], str | None]:
    """Returns the words without a SELECT, and that one: it needs no -q."""
    statements = [word for word in words if _SELECT.match(word)]
    if not statements or select is not None:
        return words, select
    return [word for word in words if word != statements[0]], statements[0]


def list_runs(words: Sequence[str], *, last: int | None) -> None:
    """Prints one line per run: of all, of those that the filters leave, or of one."""
    from rl_core.runs.lock import close_lost_runs  # with all settings, which `sql` can do without

    filters, others = filters_and_others(words)
    root, runs, names = _root_runs_and_names(others)
    named = runs + names
    if len(named) > 1:
        raise BadInputError(f"runs takes one RUN, or none for all, not {' and '.join(named)}")
    close_lost_runs(root)
    frame = ask("runs_overview", root=root, run=next(iter(named), None))
    frame = matching(frame, filters, root)
    newest = frame.head(frame.height if last is None else last)
    left_out = frame.height - newest.height
    give(runs=newest.to_dicts(), left_out=left_out)
    if named or newest.is_empty():
        show_rows(newest)
        return
    short = {"accuracy_before": "before", "accuracy_after": "after", "minutes": "min"}
    lines = newest.select("run_id", "status", "steps", *short).rename(short)
    show_rows(lines.with_columns(lines["min"].round(1)))
    for column in ("note", "next_step"):
        for run_id, text in newest.drop_nulls(column).select("run_id", column).rows()[:_MOST_TEXTS]:
            say(f"{run_id}: {printable(in_one_line(text))}")
    if left_out:
        say(f"{counted(left_out, 'older run')} not shown")
    say("accuracy before and after training; `countdown-train runs RUN` shows all of a run")


def _root_runs_and_names(words: Sequence[str]) -> tuple[Path, list[str], list[str]]:
    """Returns where runs are, the runs named by `run_id=`, and the words that are no settings."""
    runs = [word.removeprefix("run_id=") for word in words if word.startswith("run_id=")]
    others = [word for word in words if "=" in word and not word.startswith("run_id=")]
    return storage_root(others), runs, [word for word in words if "=" not in word]


def storage_root(overrides: Sequence[str]) -> Path:
    """Returns where runs are; if possible without Hydra, whose import outlasts most questions."""
    if not overrides:
        return StorageConfig().root
    if len(overrides) == 1 and (plain := _PLAIN_ROOT.fullmatch(overrides[0])):
        return Path(plain[1])
    from flows.settings.compose import compose

    storage = compose(overrides).storage
    if storage.url is not None:
        from tasks.storage import bring_runs

        bring_runs(storage)
    return storage.root


def compare(words: Sequence[str]) -> None:
    """Compares runs: what they reached, settings that differ, who won."""
    from rl_core.runs.lock import close_lost_runs
    from tasks.report_page.data import PAIRED, compare_runs

    root, runs, names = _root_runs_and_names(words)
    close_lost_runs(root)
    tables = compare_runs(root, runs + names)
    reached, differences, pairs = (frame.to_dicts() for frame in tables.values())
    settings = [{"key": row.pop("key"), "values": row} for row in differences]
    give(runs=reached, settings=settings, pairs=pairs)
    if tables["what they reached"]["decoding"].drop_nulls().n_unique() > 1:
        say("these runs measure accuracy by different decoding: their accuracies do not compare")
    for title, frame in tables.items():
        say(f"\n{title}")
        if title == PAIRED and frame.is_empty():
            say("none: no two of them were evaluated on the same test problems")
        else:
            show_rows(frame)
