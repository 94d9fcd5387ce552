"""Of part g: new weights on one card, where another process opens this one's memory (CUDA IPC)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict

import torch

from benchmarks.gpu_check.bench import Bench
from benchmarks.gpu_check.report import Row
from rl_core.errors import SyncBroken
from rl_core.models.weight_channel import WeightChannel, open_store
from rl_core.types import Meeting

_PATIENCE_S = 60.0
_RECEIVER = """
import json, sys
import torch
from rl_core.models.weight_channel import WeightChannel
from rl_core.types import Meeting

meeting, device = Meeting(**json.loads(sys.argv[1])), torch.device(sys.argv[2])
channel = WeightChannel(meeting, 1, device)
for _ in range(2):
    print(sum(x.double().sum().item() for _, x in channel.receive({})), flush=True)
"""


def handed_over(bench: Bench) -> Iterator[Row]:
    """Yields whether what a process sends twice, changed between, arrives both times."""
    num_weights = 2**28 if bench.on_card else 2**16
    weights = torch.arange(num_weights, device=bench.device, dtype=torch.float32) % 1_000
    shapes = {"whole": (num_weights // 2,), "slice": (num_weights // 2,)}
    store = open_store("127.0.0.1")
    meeting = Meeting(
        host="127.0.0.1",
        port=store.port,
        name="handles",
        size=2,
        backend="ipc",
        dtype="float32",
        shapes=shapes,
        timeout_s=_PATIENCE_S,
    )
    command = [sys.executable, "-c", _RECEIVER, json.dumps(asdict(meeting)), str(bench.device)]
    name, seconds, is_equal = "weights by handles, to another process", list[float](), list[bool]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        try:
            channel = WeightChannel(meeting, 0, bench.device)
            for _ in range(2):
                with bench.timed(seconds):
                    channel.send(zip(shapes, weights.chunk(2), strict=True))
                sent, got = weights.double().sum().item(), float(receiver.stdout.readline())
                is_equal.append(sent == got)
                weights.neg_()
        except (SyncBroken, ValueError) as error:
            receiver.kill()
            yield Row(name, ok=False, note=str(error) or "the receiver said nothing")
            return
    numbers = {"s per GB": seconds[-1] / (4e-9 * num_weights)}
    yield Row(name, all(is_equal), numbers, "sums equal")
