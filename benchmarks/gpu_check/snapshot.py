"""Part f: how long a step waits for a checkpoint's snapshot, into pinned memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.report import Row
from rl_core.checkpoints.tensor_snapshot import SnapshotMemory
from rl_core.learner.learner import Learner
from rl_core.system.threads import MicroBatchThreads

_GIB = 2**30
_MOST_S_PER_GB = 0.5
"""A tenth of what 16 lanes of PCIe 3 do."""
_GRPO: Sections = {
    "algorithm": {"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
    "checkpoints": {"in_background": True},
}


def checks(bench: Bench) -> Iterator[Row]:
    """Yields seconds per GB of a learner's snapshots, and whether copies equal their originals."""
    model = bench.model("Qwen/Qwen2.5-0.5B", None if bench.on_card else TINY)
    sizes: Sections = {"data": {"train_batch_size": 4}, "actor": {"mini_batch_size": 2}}
    learner = Learner(bench.config(merged(_GRPO, sizes)), model)
    batch = random_batch(4, 2, prompt=(8, 16), response=(8, 32), vocab_size=512)
    learner.learn(batch)
    reserve, seconds = list[float](), list[float]()
    with bench.timed(reserve):
        learner.reserve_snapshot()
    for _ in range(3):
        with bench.timed(seconds):
            learner.snapshot()
    weights = learner.weights()
    tensors = weights | learner.optimizers["actor"].state_tensors("actor")
    gigabytes = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
    numbers: dict[str, float | str] = {
        "GB": gigabytes,
        "s to reserve": reserve[0],
        "s of the first": seconds[0],
        "s per GB": min(seconds) / gigabytes,
    }
    if bench.on_card:
        pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        numbers["pinned GiB"] = pinned / _GIB
    ok = min(seconds) / gigabytes <= _MOST_S_PER_GB or not bench.on_card
    yield Row("a learner's snapshot", ok, numbers, f"allowed {_MOST_S_PER_GB:g} s per GB")
    yield _copies(bench, weights)


def _copies(bench: Bench, weights: dict[str, torch.Tensor]) -> Row:
    memory = SnapshotMemory(MicroBatchThreads(1))
    copies = memory.copy(weights)
    other = sum(int((weights[name].cpu() != copy).sum()) for name, copy in copies.items())
    unpinned = sum(not copy.is_pinned() for copy in copies.values()) if bench.on_card else 0
    numbers = {"other numbers": other, "tensors not pinned": unpinned}
    return Row("what is copied", other == unpinned == 0, numbers)
