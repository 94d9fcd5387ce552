"""The end of training with adapters: the latest and the best checkpoint become whole models."""

from functools import partial

from rl_core.checkpoints.manifest import Manifest, read_manifest
from rl_core.checkpoints.pruning import prune
from rl_core.checkpoints.store import Checkpoint, add_weights, best, latest, reading_sound
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import merge
from rl_core.errors import last_line
from rl_core.resources.disk_plan import merged_bytes
from rl_core.resources.model_shape import ModelShape
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import Log
from rl_core.system.model_folder import ADAPTER_FOLDER


def merge_latest_and_best(config: RunConfig, run: RunFolder, logger: Log) -> None:
    """Merges what `checkpoints.merged` says, and is not merged yet; no process may hold the models.

    If one cannot be merged (the disk is full, the base has gone), its adapter stays what is used.
    """
    if config.saves_whole_models or config.checkpoints.merged == "none":
        return
    for checkpoint in dict.fromkeys(filter(None, (latest(run.path), best(run.path)))):
        manifest = read_manifest(checkpoint.path)
        if isinstance(manifest, Manifest) and not manifest.weights:
            try:
                _merge(config, run, checkpoint)
                logger.info("%s holds the merged model", checkpoint.path.name)
            except (OSError, ValueError) as error:
                trouble = f"{checkpoint.path.name} holds only the adapter ({last_line(error)})"
                logger.warning("%s", trouble)
                run.note(trouble)


def _merge(config: RunConfig, run: RunFolder, checkpoint: Checkpoint) -> None:
    size = merged_bytes(ModelShape.from_folder(checkpoint.path))
    prune(
        run.path,
        keep_last=config.checkpoints.keep_last,
        quota_bytes=config.checkpoints.quota_bytes - size,
        min_free_bytes=size + int(config.storage.min_free_gib * 2**30),
    )
    with reading_sound(checkpoint.path):
        add_weights(checkpoint.path, partial(merge, checkpoint.path / ADAPTER_FOLDER))
