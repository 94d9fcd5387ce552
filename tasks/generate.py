"""Generate: the data set that the settings describe, made once and reused by content."""

import hashlib
import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from prefect import Task
from prefect.context import TaskRunContext

from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder, generator_settings, is_ready, write_dataset
from rl_core.data.readers import SPLITS, count_rows
from rl_core.system.atomic import locked, sweep_leftovers
from rl_core.system.words import cut
from tasks.prefect_ui.flow_run import stage

_NAME_CHARACTERS: Final = 80
_logger = logging.getLogger(__name__)


def generate_dataset(config: RunConfig) -> Path:
    """Returns the folder of the data set; makes it if it is not there, or not complete.

    ValueError if other settings made it or these cannot be met; DatasetError if a file is damaged.
    """
    folder = dataset_folder(config)
    if is_ready(config.env, config.data, folder):
        _logger.info("data set %s is there and verified", folder)
        return folder
    with locked(folder.parent):
        if is_ready(config.env, config.data, folder):
            return folder  # another run has made it since
        sweep_leftovers(folder.parent)
        started = time.monotonic()
        write_dataset(config.env, config.data, folder)
        _logger.info("data set %s made in %.1f s", folder, time.monotonic() - started)
    return folder


def rows_per_split(folder: Path) -> dict[str, int]:
    """Returns how many problems each split of a data set holds."""
    return {split: count_rows(folder / f"{split}.parquet") for split in SPLITS}


def cache_key(_: TaskRunContext, inputs: dict[str, Any]) -> str:
    """Returns a key that two runs of the task share if they make the same folder."""
    config: RunConfig = inputs["config"]
    facts = {
        "settings": generator_settings(config.env, config.data),
        "folder": str(dataset_folder(config).resolve()),
    }
    return f"generate-{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()}"


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    if files := config.data.train_files:
        return cut(f"take over problems from {', '.join(files)}", _NAME_CHARACTERS)
    if config.env.rows.source(config.env) is not None:
        return f"read the problems of {config.env.name}"
    return f"generate {config.data.train_size + config.data.test_size:,} problems"


@stage("generate", _run_name, cache_key)
def generate_task(config: RunConfig) -> Path:
    """Makes or finds the data set in a flow run."""
    return generate_dataset(config)


def dataset_task(config: RunConfig) -> Task[[RunConfig], Path]:
    """Returns the task: cached if the settings are unchanged and the files are there and verify."""
    is_there = False
    with suppress(ValueError):  # the task itself says what is wrong
        is_there = is_ready(config.env, config.data, dataset_folder(config))
    return generate_task.with_options(refresh_cache=not is_there)
