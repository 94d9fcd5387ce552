"""The command `report`: reads a run's files only, so it loads neither Prefect nor torch."""

from collections.abc import Sequence

from flows.cli.terminal import say
from flows.runs.lookup import find_run, run_first
from flows.settings.compose import compose
from rl_core.storage.mirror import mirrored
from tasks.report import write_report


def report(words: Sequence[str]) -> None:
    """Writes the report of a RUN, by default the latest."""
    overrides = run_first(words, "report")
    run = find_run(overrides)
    with mirrored(compose(overrides).storage, run.run_id):
        say(write_report(run.path).html)
