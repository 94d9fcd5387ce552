"""Makes a checkpoint champion by the real door, with rows that say it is good."""

from pathlib import Path

from rl_core.checkpoints.champion import Contender
from rl_core.checkpoints.manifest import model_digest
from rl_core.checkpoints.store import latest
from rl_core.config.run import RunConfig
from rl_core.evaluation.promotion import promote
from rl_core.evaluator import Evaluator
from rl_core.runs.run_folder import RunFolder
from tests.rl_core.evaluation.test_summary import row


def crown(config: RunConfig, run: RunFolder, data: Path) -> Path:
    """Returns the folder of a run's latest checkpoint, the champion of a data set's tests now."""
    checkpoint = latest(run.path)
    assert checkpoint is not None
    root = config.storage.root
    folder = str(checkpoint.path.relative_to(root))
    which = {"run_id": run.run_id, "step": checkpoint.step, "checkpoint": folder}
    measured = {"accuracy": 1.0, "num_problems": 8, "evaluation": {}, "rows": ""}
    promoted = promote(
        root,
        Contender(model_digest=model_digest(checkpoint.path), **which, **measured),
        env=config.env.name,
        problems=Evaluator(config, data).problem_set,
        now="2026-11-21",
        rows=[row(i, "correct") for i in range(8)],
        base_rows=[row(i, "no_answer") for i in range(8)],
        champion_rows=lambda _: None,
    )
    assert promoted.is_champion
    return checkpoint.path
