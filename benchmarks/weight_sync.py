"""Seconds, CPU seconds and bytes of a weight sync, by transport, number of engines and machines.

.venv/bin/python benchmarks/weight_sync.py

Real workers: a learner and transformers engines in Ray, on one node, or on a node each (all of this
machine, so that what goes between nodes goes through loopback). The transports take turns, so a
neighbour on the machine slows both down. Bytes are counted by the loopback interface, which others
use too: `unshare --net sh -c 'ip link set lo up; exec ...'` has one of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from ray.cluster_utils import Cluster
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from rl_core.config.run import RunConfig
from rl_core.workers.cluster import Workers

_SHAPE = {
    "vocab_size": 8_192,
    "hidden_size": 768,
    "intermediate_size": 2_048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "tie_word_embeddings": True,
}
"""63 million parameters."""
_STORE_BYTES = 1_500_000_000


def write_model(folder: Path) -> int:
    """Writes a random model, and returns the bytes of its weights."""
    model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE, dtype="float32"))
    model.generation_config = GenerationConfig(eos_token_id=1)
    model.save_pretrained(folder)
    return sum(weight.nbytes for weight in model.parameters())


@contextmanager
def ray_nodes(number: int) -> Iterator[str | None]:
    """Yields the address of so many nodes, a process each; None for one: a private Ray."""
    if number == 1:
        yield None
        return
    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(number - 1):
            cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
        yield cluster.address
    finally:
        cluster.shutdown()


def settings(engines: int, address: str | None, root: Path) -> RunConfig:
    """Returns settings of one learner, without critic and reference, and so many engines."""
    return RunConfig.model_validate(
        {
            "storage": {"root": root},
            "data": {"max_prompt_length": 64, "max_response_length": 64},
            "algorithm": {"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
            "rollout": {"engine": "hf", "num_engines": engines, "weight_sync": "broadcast"},
            "resources": {"learner_threads": 1, "ray_address": address},
        }
    )


def used() -> tuple[float, int]:
    """Returns CPU seconds of all processes below this one, and bytes sent through loopback."""
    cpu_s = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system
    return cpu_s, psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def measure(sync: Callable[[], Any]) -> tuple[float, float, int]:
    """Returns wall seconds, CPU seconds and bytes of one sync."""
    cpu_s, sent = used()
    start = time.perf_counter()
    sync()
    wall_s = time.perf_counter() - start
    cpu_after_s, sent_after = used()
    return wall_s, cpu_after_s - cpu_s, sent_after - sent


def compare(engines: int, nodes: int, rounds: int, root: Path) -> Iterator[dict[str, Any]]:
    """Yields a row for each transport: medians of the rounds after the first."""
    num_bytes = write_model(root / "model")
    with (
        ray_nodes(nodes) as address,
        Workers.start(settings(engines, address, root), root / "model") as workers,
    ):
        ways: dict[str, Callable[[], Any]] = {
            "broadcast": workers.sync_weights,
            "object store": lambda: workers.engines.set_weights(workers.learner.weights()),
        }
        taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
        for _ in range(1 + rounds):
            for name, sync in ways.items():
                taken[name].append(measure(sync))
    for name, measured in taken.items():
        wall_s, cpu_s, sent = (statistics.median(x) for x in zip(*measured[1:], strict=True))
        yield {
            "engines": engines,
            "nodes": nodes,
            "transport": name,
            "wall_s_per_gb": round(wall_s / num_bytes * 1e9, 2),
            "cpu_s_per_gb": round(cpu_s / num_bytes * 1e9, 2),
            "models_sent_per_engine": round(sent / num_bytes / engines, 2),
        }


def main() -> None:
    """Prints a row of JSON for each transport, number of engines and of nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    for engines in asked.engines:
        for nodes in (1, 1 + engines):
            with tempfile.TemporaryDirectory() as folder:
                for row in compare(engines, nodes, asked.rounds, Path(folder)):
                    sys.stdout.write(json.dumps(row) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
