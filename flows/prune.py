"""Pruning of all runs as a flow, for a schedule: what need not stay makes room for what comes."""

from collections.abc import Sequence
from typing import Any

from prefect import flow

from flows.errors import BadInputError
from flows.prefect_patches.own_server import obey_own_server_only
from flows.runs.lookup import changed_settings, find_run, settings_of_run, where_and_others
from flows.runs.run_record import prepare_for_flow_runs
from flows.settings.compose import compose
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.lock import close_lost_runs
from rl_core.runs.run_folder import RunFolder
from tasks.prefect_ui.flow_run import logs_in_ui
from tasks.prune import prune_runs_task
from tasks.queries.run_tables import find_runs

obey_own_server_only()
prepare_for_flow_runs()


@flow(name="prune")
def prune(dry_run: bool = False, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """Holds checkpoints and rollouts of all runs to their quotas, except what is in use.

    Args:
        dry_run: Only says what would be deleted.
        overrides: KEY=VALUE each; storage.root says where the runs are, run_id=RUN takes only one
            run, and others (checkpoints.keep_last=1) change what each run's own settings keep.

    Returns:
        Numbers of `runs` looked at and `left_alone`, of checkpoints and files `deleted` (or that
        would be), and their `bytes`.
    """
    with logs_in_ui():
        places, changes = where_and_others(overrides)
        where = compose(places)
        storage = where.storage
        close_lost_runs(storage.root)
        every = map(RunFolder, find_runs(storage.root))
        runs = every if where.run_id is None else [find_run(places)]
        return prune_runs_task([(_settings(run, changes, storage), run) for run in runs], dry_run)


def _settings(run: RunFolder, changes: Sequence[str], storage: StorageConfig) -> RunConfig | str:
    """Returns a run's settings with the changes, or why they cannot be read."""
    try:
        settings_of_run(run, storage, changes)
    except BadInputError as error:
        return str(error)
    return changed_settings(run, changes, storage)
