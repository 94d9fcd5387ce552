"""How many bytes training writes, worked out before it: checkpoints, rollouts, tests, metrics."""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape, moment_bytes
from rl_core.schema import MOST_VALIDATION_ROWS

_FLOAT32 = 4
_FIXED_BYTES = 2**20
"""Of a checkpoint, at most: tokenizer (Qwen's has 11 MB, but is compared with gigabytes), JSON."""
_ROW_BYTES, _TOKEN_BYTES, _METRICS_BYTES = 64, 2, 3_000
"""Compressed: of a rollout's numbers, of a response token's text, of a line of metrics."""
_TURN_BYTES = 4
"""Compressed: of a turn's numbers; its text is there once more than the response's."""
_TEST_FILE_BYTES = 10_000
"""Of a parquet file with a test's answers, before the first row."""


@dataclass(frozen=True)
class DiskPlan:
    """What training writes, in bytes."""

    checkpoint_bytes: int
    """Of one checkpoint: the model as it is served, and what an exact resume needs beside it."""
    kept_bytes: int
    """Of the most that lie there at a time, the one being written included."""
    step_bytes: int
    """Of a step's rollouts and metrics, and its share of a test's answers, at most."""
    logs_bytes: int
    """Of all these at the end: old rollouts age out by their quota."""

    @property
    def total_bytes(self) -> int:
        """At the end of training."""
        return self.kept_bytes + self.logs_bytes

    def fills_at(self, free_bytes: int) -> int | None:
        """Returns the step at which so much disk would be full, or None if it never is."""
        left = free_bytes - self.kept_bytes
        if left < 0:
            return 0
        return None if self.total_bytes <= free_bytes else left // self.step_bytes


def disk_plan(shape: ModelShape, config: RunConfig, num_steps: int) -> DiskPlan:
    """Returns what training with these settings writes.

    Args:
        shape: of the actor.
        config: the run's settings.
        num_steps: of all training.
    """
    size = checkpoint_bytes(shape, config)
    saves = -(-num_steps // config.trainer.save_freq)
    # Room is made before a save, so that the coming checkpoint fits into the quota beside latest
    # and best, which always stay, the newest `keep_last`, of which it is one, and every K-th.
    kept = config.checkpoints
    wanted = 2 + max(kept.keep_last, 1) + num_steps // (kept.keep_every or num_steps + 1)
    allowed = min(wanted, kept.quota_bytes // size)
    num_rollouts = config.data.train_batch_size * config.algorithm.group_size
    row = _ROW_BYTES + _TOKEN_BYTES * config.data.max_response_length
    rollouts = num_rollouts * (row + _turns_bytes(config))
    problems = min(MOST_VALIDATION_ROWS, config.trainer.test_problems, config.data.test_size)
    test = _TEST_FILE_BYTES + problems * row
    num_tests = 1 + -(-num_steps // config.trainer.test_freq)  # the first before any step
    return DiskPlan(
        checkpoint_bytes=size,
        kept_bytes=min(saves, max(3, allowed)) * size,
        step_bytes=_METRICS_BYTES + rollouts + test // config.trainer.test_freq,
        logs_bytes=num_steps * _METRICS_BYTES
        + num_tests * test
        + min(num_steps * rollouts, config.storage.rollout_quota_bytes),
    )


def _turns_bytes(config: RunConfig) -> int:
    """Returns the bytes of a rollout's turns, at most; a test's answers have none."""
    if config.env.max_turns == 1:
        return 0
    most = config.data.max_response_length
    # The models' and the env's between them, of a token or more.
    return _TOKEN_BYTES * most + _TURN_BYTES * min(2 * config.env.max_turns - 1, most)


def checkpoint_bytes(shape: ModelShape, config: RunConfig) -> int:
    """Returns the bytes of one checkpoint, all in float32 but for moments of fewer bits.

    The model whole, adapters merged; beside it what learns and is not in it (adapters, the critic)
    and both moments of whatever learns.
    """
    rank, shares_trunk = config.model.lora_rank, config.critic.share_trunk
    adapters = shape.num_adapter_parameters(rank)
    actor = adapters if rank else shape.num_parameters
    critic = 0
    if config.algorithm.estimator == "gae":
        trunk = adapters if rank else shape.num_backbone_parameters
        critic = shape.hidden_size + 1 + (0 if shares_trunk else trunk)
    beside = critic + (actor if rank else 0)
    weights = _FLOAT32 * (shape.num_parameters + beside)
    return weights + moment_bytes(actor + critic, config) + _FIXED_BYTES
