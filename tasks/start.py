"""Start: the model that a night goes on from, the champion of its own problems or none."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.logging import get_run_logger

from rl_core.checkpoints.champion import Champion, champion_file, read_champion
from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape
from rl_core.storage.champions import bring_champion
from rl_core.storage.object_store import ObjectStore
from tasks.evaluator import Evaluator
from tasks.generate import generate_dataset
from tasks.prefect_ui.result_keys import once_per_flow_run
from tasks.preflight_checks.plans import model_shape
from tasks.storage.bring import bring_inputs


def champion_of(config: RunConfig, data: Path) -> Champion | None:
    """Returns the champion of a data set's test problems, if there is one."""
    problems = Evaluator(config, data).problem_set
    return read_champion(champion_file(config.storage.root, config.env.name, problems))


def champion_to_train(config: RunConfig) -> tuple[Path | None, str]:
    """Returns the champion's checkpoint, or None, and in words why.

    The champion of other problems will not do: it may have been trained on these tests.
    """
    root, env = config.storage.root, config.env.name
    if config.storage.url is not None:
        store = ObjectStore(config.storage.url)
        bring_inputs(config, store)
        bring_champion(config.storage, env, Evaluator(config, generate_dataset(config)).problem_set)
    if not any((root / "champions").glob(f"{env}-*.json")):
        return None, f"no champion of {env} in {root / 'champions'} yet"
    champion = champion_of(config, generate_dataset(config))
    if champion is None:
        return None, f"no champion of these problems in {root / 'champions'} yet"
    name, folder = champion.current.name, root / champion.current.checkpoint
    if not champion.is_there(root):
        return None, f"the champion {name} is gone from the disk"
    wanted = model_shape(config)
    if wanted is not None and wanted != ModelShape.from_folder(folder):
        return None, f"the champion {name} is not of the size that the settings ask for"
    return folder, f"the champion {name}, accuracy {champion.current.accuracy:.3f}"


@task(
    name="start",
    task_run_name="choose the model to start from",
    persist_result=True,
    result_serializer="json",
    cache_key_fn=once_per_flow_run,
)
def start_task(config: RunConfig) -> Path | None:
    """Returns the champion's checkpoint in a flow run, whose retries start from the same."""
    folder, why = champion_to_train(config)
    get_run_logger().info("starting %s: %s", "afresh" if folder is None else "from", why)
    return folder
