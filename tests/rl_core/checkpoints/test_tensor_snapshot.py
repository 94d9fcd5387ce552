from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rl_core.checkpoints.tensor_snapshot import SnapshotMemory
from rl_core.models.loading import load_actor
from rl_core.system.threads import MicroBatchThreads


def tensors() -> dict[str, torch.Tensor]:
    """Scalars, nothing at all, a transposed one, bytes, and one above a block."""
    return {
        "step": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "bytes": torch.arange(256, dtype=torch.uint8),
        "half": torch.randn(5, 7).to(torch.bfloat16),
        "large": torch.randn(3, 2**21),
        "parameter": torch.nn.Parameter(torch.randn(4, 4)),
    }


def test_copies_are_equal_contiguous_and_do_not_follow_the_originals():
    for num_threads in (1, 2):
        originals = tensors()
        copies = SnapshotMemory(MicroBatchThreads(num_threads)).copy(originals)
        assert list(copies) == list(originals)
        for name, original in originals.items():
            assert torch.equal(copies[name], original), name
            assert copies[name].dtype == original.dtype
            assert copies[name].is_contiguous()
            assert not copies[name].requires_grad
        with torch.no_grad():
            originals["large"].zero_()
            originals["parameter"].zero_()
        assert copies["large"].any()
        assert copies["parameter"].any()


def test_where_memory_is_short_a_copy_is_the_tensors_themselves():
    memory, originals = SnapshotMemory(MicroBatchThreads(1), copies=False), tensors()
    memory.reserve(originals)
    assert all(copy is originals[name] for name, copy in memory.copy(originals).items())


def test_the_next_copy_lies_in_the_same_memory():
    memory, originals = SnapshotMemory(MicroBatchThreads(1)), tensors()
    before = {name: copy.data_ptr() for name, copy in memory.copy(originals).items()}
    originals["step"] += 1
    originals["large"] *= 2
    originals["new"] = torch.ones(2)
    copies = memory.copy(originals)
    assert {name: copy.data_ptr() for name, copy in copies.items() if name != "new"} == before
    for name, original in originals.items():
        assert torch.equal(copies[name], original), name


@contextmanager
def taken_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Yields the memory for copies that is taken within the block: the one that may be pinned."""
    taken: list[Tensor] = []
    empty = torch.empty

    def recorded(*size: Any, **options: Any) -> Tensor:
        made = empty(*size, **options)
        if "pin_memory" in options:
            taken.append(made)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", recorded)
        yield taken


def test_reserved_memory_is_what_the_copies_use(monkeypatch):
    memory, originals = SnapshotMemory(MicroBatchThreads(1)), tensors()
    with taken_memory(monkeypatch) as reserved:
        memory.reserve(originals)
    with taken_memory(monkeypatch) as more:
        copies = memory.copy({name: x for name, x in originals.items() if name != "half"})
        copies |= memory.copy(originals)  # some state appears later
    assert more == []
    assert {copy.data_ptr() for copy in copies.values()} == {copy.data_ptr() for copy in reserved}
    for name, original in originals.items():
        assert torch.equal(copies[name], original), name


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_learner_goes_on_while_its_snapshot_is_written(new_learner, tmp_path, make_batch):
    controller = {"kl_controller": "adaptive", "kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 80}
    learner = new_learner(algorithm=controller)
    learner.learn(make_batch(0))
    learner.save(tmp_path / "at_once")
    learner.snapshot()
    learner.learn(make_batch(1))
    torch.randn(5)
    learner.write_snapshot(tmp_path / "later")
    learner.save(tmp_path / "next")
    at_once, later, following = (files(tmp_path / n) for n in ("at_once", "later", "next"))
    assert later == at_once
    assert {name for name in following if following[name] != later[name]} == {
        "model.safetensors",
        "trainer/learner.safetensors",
        "trainer/learner.json",
    }


def test_the_model_files_are_those_that_transformers_would_write(
    new_learner, tiny_model_path, tmp_path
):
    new_learner().save(tmp_path / "ours")
    load_actor(tiny_model_path, torch.device("cpu")).save_pretrained(tmp_path / "theirs")
    ours, theirs = files(tmp_path / "ours"), files(tmp_path / "theirs")
    assert {"config.json", "generation_config.json", "model.safetensors"} == theirs.keys()
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["tokenizer.json"] == (tiny_model_path / "tokenizer.json").read_bytes()


def test_a_learner_reserves_all_but_numbers_and_random_states(
    new_learner, tmp_path, make_batch, monkeypatch
):
    learner = new_learner()
    with taken_memory(monkeypatch) as reserved:
        learner.reserve_snapshot()
    learner.learn(make_batch())
    with taken_memory(monkeypatch) as more:
        learner.snapshot()
    assert {memory.shape for memory in more} == {torch.Size([]), torch.get_rng_state().shape}
    learner.write_snapshot(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    state = load_file(tmp_path / "trainer" / "learner.safetensors")
    written = [*weights.values(), *state.values()]
    assert Counter(m.shape for m in reserved + more) == Counter(x.shape for x in written)
