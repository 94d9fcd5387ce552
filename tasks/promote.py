"""Promote: the run's checkpoint becomes the champion of its problems, if it is better."""

import logging
from pathlib import Path
from typing import Any

from rl_core.checkpoints.champion import Contender, PromotedContender
from rl_core.checkpoints.manifest import MANIFEST, model_digest
from rl_core.checkpoints.store import Checkpoint, reading_latest
from rl_core.config.run import RunConfig
from rl_core.evaluation.promotion import Promotion, promote
from rl_core.evaluation.summary import summarise
from rl_core.evaluator import Evaluator, Rows, checkpoint_name
from rl_core.runs.metrics_log import utc_now
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.champions import promote_published
from rl_core.storage.object_store import StoreError
from rl_core.system.atomic import is_disk_full
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.flow_run import once_per_training, stage

_logger = logging.getLogger(__name__)


def promote_run(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> Promotion:
    """Compares the run's evaluated checkpoint with the champion; `run.json` says the outcome."""
    try:
        with reading_latest(run.path) as checkpoint:
            promotion = (
                _refused("the run has no checkpoint")
                if checkpoint is None
                else _promote(config, run, data, model_path, checkpoint)
            )
    except StoreError as error:
        promotion = _refused(f"{error}; countdown-train evaluate run_id={run.run_id} tries again")
    except OSError as error:
        if not is_disk_full(error):
            raise
        promotion = _refused(f"the disk is full ({error})")
    _logger.info("champion: %s", promotion.reason)
    run.update(champion=promotion.reason)
    return promotion


def _refused(why: str) -> Promotion:
    return Promotion(False, f"not promoted: {why}", None)


def _promote(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path, checkpoint: Checkpoint
) -> Promotion:
    root = config.storage.root
    evaluator = Evaluator(config, data)
    folder = checkpoint.path.relative_to(root)  # not resolved: a run may lie on a larger disk
    name = checkpoint_name(checkpoint.path)
    file = evaluator.rows_file(name, checkpoint.path).relative_to(root)

    def rows_of(champion: PromotedContender) -> Rows | None:
        path = root / champion.checkpoint
        return evaluator.known_rows(checkpoint_name(path), path)

    def judge() -> Promotion:
        base_rows = evaluator.known_rows("base", model_path)
        rows = evaluator.known_rows(name, checkpoint.path)
        if base_rows is None or rows is None:
            return _refused("the rows of its evaluation were not kept")
        summary = summarise(rows)
        return promote(
            root,
            Contender(
                run_id=run.run_id,
                step=checkpoint.step,
                checkpoint=str(folder),
                model_digest=model_digest(checkpoint.path),
                accuracy=summary.accuracy.value,
                num_problems=summary.num_problems,
                evaluation=evaluator.settings,
                rows=str(file),
            ),
            env=config.env.name,
            problems=evaluator.problem_set,
            now=utc_now(),
            rows=rows,
            base_rows=base_rows,
            champion_rows=rows_of,
        )

    return promote_published(
        config.storage,
        config.env.name,
        evaluator.problem_set,
        judge,
        ((folder / MANIFEST).as_posix(), file.as_posix()),
    )


@stage("promote", "compare with the champion", once_per_training)
def promote_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> None:
    """Promotes in a flow run; a table artifact shows the champion and those before it."""
    promotion = promote_run(config, run, data, model_path)
    create_table_artifact(
        champion_table(promotion), key="champion", description=f"{run.run_id}: {promotion.reason}"
    )


def champion_table(promotion: Promotion) -> list[dict[str, Any]]:
    """Returns one row per champion of these problems, the current one first."""
    champion = promotion.champion
    reigns = (champion.current, *reversed(champion.history)) if champion else ()
    return [
        {"checkpoint": reign.name, "accuracy": f"{reign.accuracy:.3f}", "decoding": reign.protocol}
        | {"problems": reign.num_problems, "promoted at": reign.promoted_at, "why": reign.reason}
        for reign in reigns
    ]
