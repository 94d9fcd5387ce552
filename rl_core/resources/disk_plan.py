"""Bytes that training will write, computed before it: checkpoints, rollouts, tests, metrics."""

from dataclasses import dataclass

from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape, snapshot_bytes
from rl_core.schema import MOST_VALIDATION_ROWS

_FIXED_BYTES = 2**20
"""Tokenizer and JSON in a checkpoint (Qwen's tokenizer has 11 MB, few next to gigabytes)."""
_ROW_BYTES = 64
_TOKEN_BYTES = 2
_TURN_BYTES = 4
_METRICS_BYTES = 3_000
"""Compressed: a rollout's numbers, a response token's text, a turn's numbers, a line of metrics."""
_TEST_FILE_BYTES = 10_000
"""A parquet file with a test's answers, without its rows."""


@dataclass(frozen=True)
class DiskPlan:
    """What training writes, in bytes."""

    checkpoint_bytes: int
    """Of one checkpoint."""
    kept_bytes: int
    """Of all checkpoints on the disk at a time, at most, including the one being written."""
    step_bytes: int
    """Of a step's rollouts and metrics, and its share of a test's answers, at most."""
    logs_bytes: int
    """Of the rollouts, metrics and answers of all steps; a quota limits the rollouts."""

    @property
    def total_bytes(self) -> int:
        """Bytes on the disk at the end of training."""
        return self.kept_bytes + self.logs_bytes

    def fills_at(self, free_bytes: int) -> int | None:
        """Returns the step at which the disk would be full, or None if it never is."""
        left = free_bytes - self.kept_bytes
        if left < 0:
            return 0
        return None if self.total_bytes <= free_bytes else left // self.step_bytes


def disk_plan(shape: ModelShape, config: RunConfig, num_steps: int) -> DiskPlan:
    """Returns what all steps of training write."""
    size = checkpoint_bytes(shape, config)
    saves = -(-num_steps // config.trainer.save_freq)
    # Room is made before a save: the new checkpoint, one of the newest `keep_last`, must fit into
    # the quota besides latest and best, which always stay.
    kept = config.checkpoints
    allowed = min(2 + max(kept.keep_last, 1), kept.quota_bytes // size)
    num_rollouts = config.data.train_batch_size * config.algorithm.group_size
    row = _ROW_BYTES + _TOKEN_BYTES * config.data.max_response_length
    most = config.data.max_response_length
    turns = 0
    if config.env.max_turns > 1:
        # Turns store the text once more: the model's turns and, between them, the env's, each of at
        # least one token.
        turns = _TOKEN_BYTES * most + _TURN_BYTES * min(2 * config.env.max_turns - 1, most)
    rollouts = num_rollouts * (row + turns)
    problems = min(MOST_VALIDATION_ROWS, config.trainer.test_problems, config.data.test_size)
    test = _TEST_FILE_BYTES + problems * row
    num_tests = 1 + -(-num_steps // config.trainer.test_freq)  # the first before any step
    at_end = 0  # latest and best
    if not config.saves_whole_models and kept.merged == "last":
        at_end = min(2, saves) * merged_bytes(shape)
    return DiskPlan(
        checkpoint_bytes=size,
        kept_bytes=min(saves, max(3, allowed)) * size + at_end,
        step_bytes=_METRICS_BYTES + rollouts + test // config.trainer.test_freq,
        logs_bytes=num_steps * _METRICS_BYTES
        + num_tests * test
        + min(num_steps * rollouts, config.storage.rollout_quota_bytes),
    )


def merged_bytes(shape: ModelShape) -> int:
    """Returns the bytes of the weights that merging an adapter adds to a checkpoint."""
    return 4 * shape.num_parameters + _FIXED_BYTES


def checkpoint_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of one checkpoint: what is copied for it, and its small files."""
    return snapshot_bytes(shape, config) + _FIXED_BYTES
