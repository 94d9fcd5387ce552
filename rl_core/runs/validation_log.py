"""HELD-OUT answers: what the model said to the same problems at each test, to be read one by one.

    held_out/step_000100.parquet   rows of `rl_core.schema.EVALUATION`, greedy

Not here: the evaluation after training, whose files in `eval/` hold every problem.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_core.evaluation.rows import label_rows, read_rows, write_rows
from rl_core.runs.rollout_log import step_files
from rl_core.schema import MOST_VALIDATION_ROWS
from rl_core.system.atomic import sweep_leftovers
from rl_core.system.disk_reserve import demand_room
from rl_core.types import Rollout

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOutLog:
    """`held_out/`: a file per test."""

    folder: Path
    run_id: str

    def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Writes the first answers of a test; a full disk costs them and a warning, not the run."""
        model = f"step_{step:06d}" if step else "base"
        rows = [_row(rollout) for rollout in rollouts[:MOST_VALIDATION_ROWS]]
        try:
            demand_room(self.folder.parent)
            write_rows(
                label_rows(rows, run_id=self.run_id, model=model, step=step),
                self.folder / f"step_{step:06d}.parquet",
            )
        except OSError as error:
            _logger.warning("the answers of the test at %d could not be written: %s", step, error)

    def read(self) -> list[dict[str, Any]]:
        """Returns all rows, test by test."""
        return [row for _, file in step_files(self.folder) for row in read_rows(file)]

    def cut_after(self, step: int) -> None:
        """Removes the tests of later steps, and what a killed write left."""
        if self.folder.is_dir():
            sweep_leftovers(self.folder)
        for tested, file in step_files(self.folder):
            if tested > step:
                file.unlink()


def _row(rollout: Rollout) -> dict[str, Any]:
    problem = rollout.problem
    return {
        "prompt_index": problem.index,
        "data_source": problem.data_source,
        "num_solutions": problem.num_solutions,
        "mode": "greedy",
        "sample_index": 0,
        "prompt": rollout.prompt_text,
        "response": rollout.response_text,
        "response_tokens": len(rollout.completion.response_ids),
        "finish_reason": rollout.completion.finish_reason,
        "ground_truth": json.dumps(problem.ground_truth, sort_keys=True, ensure_ascii=False),
        **asdict(rollout.scored),
    }
