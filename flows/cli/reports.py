"""The commands `report` and `audit`: they read a run's files, so load neither Prefect nor torch."""

from collections.abc import Sequence
from contextlib import suppress

from flows.cli.terminal import say
from flows.errors import BadInputError, RunFailedError
from flows.runs.lookup import find_run, run_first, where_and_others
from flows.settings.compose import compose
from flows.settings.keys import check_choice
from rl_core.storage.mirror import mirrored
from rl_core.system.words import counted


def report(words: Sequence[str]) -> None:
    """Writes the report of a RUN, by default the latest."""
    from tasks.report import write_report  # with DuckDB

    overrides = run_first(words, "report")
    run = find_run(overrides)
    with mirrored(compose(overrides).storage, run.run_id):
        say(write_report(run.path).html)


def audit(words: Sequence[str]) -> None:
    """Prints the receipt of a RUN, by default the latest, and keeps it for the report."""
    from tasks.audit.receipt import audit_run, is_green

    where, others = where_and_others(run_first(words, "audit"))
    named = dict(word.split("=", 1) for word in others)
    rewards = named.pop("env.reward", "")
    if (env := named.pop("env", None)) is not None:
        check_choice("env", env)
    if named:
        key = next(iter(named))
        raise BadInputError(f"audit takes RUN, and env.reward= or env= if it is code, not {key}=")
    run = find_run(where)
    lines = audit_run(run, rewards.strip("[]").split(","))
    for line in lines:
        say(f"{line.outcome:8} {line.subject:23} {line.words}")
    with mirrored(compose(where).storage, run.run_id), suppress(OSError):
        run.receipt.keep_audit(lines, run.read().steps)
    if is_green(lines):
        return
    outcomes = [line.outcome for line in lines]
    raise RunFailedError(
        f"{counted(outcomes.count('FAILS'), 'check')} of {len(lines)} failed for run {run.run_id}, "
        f"and {outcomes.count('unknown')} could not be made"
    )
