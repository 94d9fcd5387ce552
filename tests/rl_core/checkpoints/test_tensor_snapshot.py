from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rl_core.checkpoints.tensor_snapshot import SnapshotMemory
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.models.loading import load_actor
from rl_core.system.threads import MicroBatchThreads

if TYPE_CHECKING:
    from rl_core.batch import TrainBatch


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


def test_copies_are_equal_contiguous_and_do_not_follow_the_originals() -> None:
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


def test_where_memory_is_short_a_copy_is_the_tensors_themselves() -> None:
    memory, originals = SnapshotMemory(MicroBatchThreads(1), copies=False), tensors()
    memory.reserve(originals)
    assert all(copy is originals[name] for name, copy in memory.copy(originals).items())


def test_the_next_copy_lies_in_the_same_memory() -> None:
    memory = SnapshotMemory(MicroBatchThreads(1))
    originals = tensors()
    before = {name: copy.data_ptr() for name, copy in memory.copy(originals).items()}
    originals["step"] += 1
    originals["large"] *= 2
    originals["new"] = torch.ones(2)
    copies = memory.copy(originals)
    assert {name: copy.data_ptr() for name, copy in copies.items() if name != "new"} == before
    for name, original in originals.items():
        assert torch.equal(copies[name], original), name


def test_reserved_memory_is_what_the_copies_use() -> None:
    memory = SnapshotMemory(MicroBatchThreads(1))
    originals = tensors()
    memory.reserve(originals)
    reserved = {name: copy.data_ptr() for name, copy in memory._copies.items()}
    copies = memory.copy({name: x for name, x in originals.items() if name != "half"})
    copies |= memory.copy(originals)  # some state appears later
    assert {name: copy.data_ptr() for name, copy in copies.items()} == reserved
    for name, original in originals.items():
        assert torch.equal(copies[name], original), name


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_learner_goes_on_while_its_snapshot_is_written(
    tiny_model_path: Path,
    tmp_path: Path,
    make_batch: Callable[..., TrainBatch],
    settings: Callable[..., RunConfig],
) -> None:
    controller = {"kl_controller": "adaptive", "kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 80}
    learner = Learner(settings(algorithm=controller), tiny_model_path)
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
    tiny_model_path: Path, tmp_path: Path, settings: Callable[..., RunConfig]
) -> None:
    Learner(settings(), tiny_model_path).save(tmp_path / "ours")
    load_actor(tiny_model_path, torch.device("cpu")).save_pretrained(tmp_path / "theirs")
    ours, theirs = files(tmp_path / "ours"), files(tmp_path / "theirs")
    assert {"config.json", "generation_config.json", "model.safetensors"} == theirs.keys()
    assert {name: ours[name] for name in theirs} == theirs


def test_a_learner_reserves_all_but_numbers_and_random_states(
    tiny_model_path: Path, make_batch: Callable[..., TrainBatch], settings: Callable[..., RunConfig]
) -> None:
    learner = Learner(settings(), tiny_model_path)
    learner.reserve_snapshot()
    reserved = dict(learner._snapshot._memory._copies)
    learner.learn(make_batch())
    learner.snapshot()
    weights, state, _ = learner._snapshot._taken
    new = {name for name in weights | state if name not in reserved}
    assert {name.split(".")[-1] for name in new} == {"step", "cpu"}
    assert {name for name in reserved if name not in weights | state} == set()
    assert all((weights | state)[name].shape == memory.shape for name, memory in reserved.items())
