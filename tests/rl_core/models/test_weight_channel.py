"""Broadcasts by real gloo, or handles of memory, each process of one played by a thread, or real.

Where a card has CUDA's handles a machine has those of its own shared memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from typing import Literal

import pytest
import torch
from torch import Tensor

from rl_core.errors import SyncBroken
from rl_core.models.weight_channel import WeightChannel, open_store
from rl_core.types import Meeting
from tests.support.broadcasts import meeting_at

CPU = torch.device("cpu")
WEIGHTS = {
    "first": torch.arange(6.0).reshape(2, 3) / 7,
    "scalar": torch.tensor(0.1),
    "large": torch.randn(300_000, generator=torch.Generator().manual_seed(0)),
    "last": -torch.ones(4, 1),
}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    store = open_store("127.0.0.1")
    yield meeting_at(store.port, WEIGHTS, 3)
    del store


def joined(pool: ThreadPoolExecutor, meeting: Meeting) -> list[WeightChannel]:
    return list(pool.map(lambda rank: WeightChannel(meeting, rank, CPU), range(meeting.size)))


def receiving(
    pool: ThreadPoolExecutor, channel: WeightChannel, number: int | None = None
) -> Future[dict[str, Tensor]]:
    """Has a thread receive all tensors, or so many and then lose interest."""

    def receive() -> dict[str, Tensor]:
        arriving = channel.receive({})
        received = dict(islice(arriving, number))
        arriving.close()  # type: ignore[attr-defined]  # a generator
        return received

    return pool.submit(receive)


@pytest.mark.parametrize("backend", ["gloo", "ipc"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_receive_what_is_sent_again_and_again(
    pool: ThreadPoolExecutor, meeting: Meeting, dtype: str, backend: Literal["gloo", "ipc"]
) -> None:
    sender, *receivers = joined(pool, replace(meeting, dtype=dtype, backend=backend))
    for factor in (1.0, -3.0):
        pending = [receiving(pool, receiver) for receiver in receivers]
        sender.send((name, factor * tensor) for name, tensor in WEIGHTS.items())
        for received in pending:
            got = received.result()
            assert list(got) == list(WEIGHTS)
            for name, tensor in WEIGHTS.items():
                assert torch.equal(got[name], (factor * tensor).to(getattr(torch, dtype)))


def test_what_can_receive_in_place_does(pool: ThreadPoolExecutor, meeting: Meeting) -> None:
    sender, *receivers = joined(pool, replace(meeting, size=2))
    own = {
        "first": torch.zeros(2, 3),
        "large": torch.zeros(300_000, dtype=torch.bfloat16),
        "last": torch.zeros(1, 4).T[:, :1],
    }
    pending = pool.submit(lambda: dict(receivers[0].receive(own)))
    sender.send(WEIGHTS.items())
    got = pending.result()
    assert got["first"] is own["first"]
    assert torch.equal(own["first"], WEIGHTS["first"])
    assert got["large"] is not own["large"]
    for name, tensor in WEIGHTS.items():
        assert torch.equal(got[name], tensor)


def test_one_that_leaves_ends_it_for_all_and_the_sender_asks_for_every_tensor(
    pool: ThreadPoolExecutor, meeting: Meeting
) -> None:
    sender, *receivers = joined(pool, replace(meeting, size=5))
    asked: list[str] = []

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in WEIGHTS.items():
            asked.append(name)
            yield name, tensor

    pending = [
        receiving(pool, channel, 1 if i == 0 else None) for i, channel in enumerate(receivers)
    ]
    with pytest.raises(SyncBroken, match="the broadcast of weights broke off"):
        sender.send(weights())
    assert asked == list(WEIGHTS)
    assert list(pending[0].result()) == ["first"]
    for received in pending[1:]:
        with pytest.raises(SyncBroken):
            received.result()
    with pytest.raises(SyncBroken, match="closed when another was lost"):
        sender.send(WEIGHTS.items())
    # Those that are left meet anew, where they met before.
    sender, *receivers = joined(pool, replace(meeting, name="group_1"))
    pending = [receiving(pool, receiver) for receiver in receivers]
    sender.send(WEIGHTS.items())
    assert all(torch.equal(p.result()["last"], WEIGHTS["last"]) for p in pending)


RECEIVER = """
import json, sys
import torch
from rl_core.models.weight_channel import WeightChannel
from rl_core.types import Meeting

meeting = Meeting(**json.loads(sys.argv[1]))
channel = WeightChannel(meeting, 1, torch.device("cpu"))
for _ in range(2):
    print(json.dumps({name: x.tolist() for name, x in channel.receive({})}), flush=True)
"""


def test_another_process_opens_the_senders_memory(meeting: Meeting) -> None:
    weights = {name: WEIGHTS[name].clone() for name in ("first", "last")}
    weights["a slice"] = torch.arange(10.0)[4:]
    two = replace(
        meeting,
        size=2,
        backend="ipc",
        shapes={name: tuple(tensor.shape) for name, tensor in weights.items()},
    )
    command = [sys.executable, "-c", RECEIVER, json.dumps(asdict(two))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        sender = WeightChannel(two, 0, CPU)
        for _ in range(2):
            sender.send(weights.items())
            assert receiver.stdout is not None
            got = json.loads(receiver.stdout.readline())
            assert got == {name: tensor.tolist() for name, tensor in weights.items()}
            for tensor in weights.values():
                tensor.mul_(-3.0)  # nobody holds the sender's own memory by now
    assert receiver.returncode == 0


@pytest.mark.parametrize("backend", ["gloo", "ipc"])
@pytest.mark.parametrize("part", ["comes", "takes"])
def test_one_that_is_silent_is_not_waited_for_for_ever(
    pool: ThreadPoolExecutor, meeting: Meeting, part: str, backend: Literal["gloo", "ipc"]
) -> None:
    meeting = replace(meeting, backend=backend)
    attempt: Callable[[], object]
    if part == "comes":
        impatient = replace(meeting, timeout_s=0.5)
        attempt = lambda: WeightChannel(impatient, 0, CPU)  # noqa: E731
    else:
        channels = joined(pool, replace(meeting, timeout_s=5.0))
        attempt = lambda: channels[0].send(WEIGHTS.items())  # noqa: E731
    with pytest.raises(SyncBroken):
        attempt()
