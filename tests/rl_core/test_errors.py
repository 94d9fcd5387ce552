import pickle

import pytest
import torch

from rl_core.errors import OutOfMemory, Stalled, WorkerDied, out_of_memory_as


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OutOfMemory("update", "2 GiB"), "out of memory in update: 2 GiB"),
        (WorkerDied("engine_1", "killed"), "engine_1 died: killed"),
        (Stalled("gen", "no progress"), "stalled in gen: no progress"),
    ],
)
def test_errors_survive_pickling_with_their_fields(error, said):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), vars(again), str(again)) == (type(error), vars(error), said)


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.empty(2**59, dtype=torch.int8),
        lambda: bytearray(2**62),
        lambda: fail(torch.OutOfMemoryError("CUDA out of memory. Tried ... 4.64 GiB.\nGPU 0 has")),
        # oneDNN's, as seen: see test_memory_capped.py
        lambda: fail(RuntimeError("could not create a primitive")),
        lambda: fail(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasC")),
    ],
    ids=["torch", "python", "card", "onednn", "cublas"],
)
def test_any_librarys_out_of_memory_becomes_ours_with_its_phase(work):
    with pytest.raises(OutOfMemory) as caught, out_of_memory_as("prepare"):
        work()
    assert caught.value.phase == "prepare"
    assert caught.value.detail
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.99 "
            "GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.70 "
            "GiB memory in use. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
            "tried to allocate 2.32 GiB: 1.20 GiB of the card's 23.99 GiB were free",
        ),
        (
            "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 576460752303423488 bytes. Error code 12 (Cannot "
            "allocate memory)",
            "tried to allocate 576460752303423488 bytes",
        ),
    ],
)
def test_what_an_allocator_says_becomes_one_sentence(said, detail):
    with pytest.raises(OutOfMemory) as caught, out_of_memory_as("update"):
        raise torch.OutOfMemoryError(said)
    assert caught.value.detail == detail
    assert str(caught.value.__cause__) == said, "nothing is lost"


def test_the_innermost_phase_is_kept():
    with pytest.raises(OutOfMemory) as caught, out_of_memory_as("step"), out_of_memory_as("update"):
        raise MemoryError
    assert caught.value.phase == "update"


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
def test_other_errors_pass_as_they_are(error):
    with pytest.raises(error, match="shape mismatch"), out_of_memory_as("update"):
        raise error("shape mismatch")
