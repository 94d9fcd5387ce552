"""Checkpoints of adapters: small while training continues, whole models at its end."""

import errno
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from rl_core.checkpoints.manifest import Manifest, find_damage, model_digest, read_manifest
from rl_core.checkpoints.store import add_weights, latest, save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import base_digest, merge
from rl_core.data.prompts import load_tokenizer, resolve_model
from rl_core.learner.learner import Learner
from rl_core.rollout.model_files import read_weights
from rl_core.runs.merging import merge_latest_and_best
from rl_core.runs.resume import check_same_model
from rl_core.runs.run_folder import RunFolder
from rl_core.system.model_folder import adapter_in
from tests.support.checkpoint_files import hidden, pointers
from tests.support.learners import assert_bitwise_equal
from tests.support.runs import new_run

LOG = logging.getLogger("rl_core")


@dataclass
class Trained:
    """Three checkpoints of a run, the first of them the best."""

    run: RunFolder
    base: Path
    weights: dict[str, dict[str, torch.Tensor]]
    """Of the learner, merged, by checkpoint."""
    config: Callable[..., RunConfig]

    def step(self, number: int) -> Path:
        return self.run.path / "checkpoints" / f"step_{number:06d}"

    def whole(self) -> list[bool]:
        return [adapter_in(self.step(number)) is None for number in (1, 2, 3)]


@pytest.fixture
def trained(settings, tiny_model_path, tmp_path, make_batch) -> Trained:
    base = Path(shutil.copytree(tiny_model_path, tmp_path / "out/base_models/tiny"))

    def config(**kept: object) -> RunConfig:
        return settings(
            model={"lora_rank": 4, "path": str(base)},
            actor={"lr": 1e-2},
            checkpoints=kept,
            storage={"root": tmp_path / "out", "min_free_gib": 0},
        )

    run = new_run(tmp_path / "out")
    learner, weights = Learner(config(), base), {}
    for step, accuracy in ((1, 0.5), (2, 0.2), (3, 0.3)):
        learner.learn(make_batch(step))
        digest = base_digest(base)
        folder = save_checkpoint(run.path, step, learner.save, accuracy, base_sha256=digest)
        weights[folder.name] = {k: x.clone() for k, x in learner.weights().items()}
    return Trained(run, base, weights, config)


def test_latest_and_best_become_whole_at_the_end_and_stay_the_same_model(trained):
    digests = [model_digest(trained.step(number)) for number in (1, 2, 3)]
    small = [c.stat().st_size for c in trained.step(1).rglob("*") if c.suffix == ".safetensors"]
    merge_latest_and_best(trained.config(), trained.run, LOG)
    assert trained.whole() == [True, False, True]
    for number in (1, 3):
        folder = trained.step(number)
        assert find_damage(folder) is None
        saved = load_file(folder / "model.safetensors")
        assert_bitwise_equal(saved, trained.weights[folder.name])
        assert sum(small) < (folder / "model.safetensors").stat().st_size
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert [model_digest(trained.step(number)) for number in (1, 2, 3)] == digests
    assert len(set(digests)) == 3
    assert pointers(trained.run.path) == ("step_000003", "step_000001")
    assert hidden(trained.run.path) == []
    before = (trained.step(1) / "model.safetensors").stat().st_mtime_ns
    merge_latest_and_best(trained.config(), trained.run, LOG)
    assert (trained.step(1) / "model.safetensors").stat().st_mtime_ns == before


def test_none_are_merged_if_so_set_and_all_are_if_so_set(trained, tmp_path):
    merge_latest_and_best(trained.config(merged="none"), trained.run, LOG)
    assert trained.whole() == [False] * 3
    Learner(trained.config(merged="all"), trained.base).save(tmp_path / "saved")
    assert adapter_in(tmp_path / "saved") is None
    assert (tmp_path / "saved/adapter/adapter_config.json").is_file()
    rounded = trained.config().model_copy(
        update={"model": trained.config().model.model_copy(update={"load_in_4bit": True})}
    )
    assert rounded.saves_whole_models


def test_a_checkpoint_of_an_adapter_is_a_model_wherever_one_is_read(trained, tmp_path):
    folder, root = trained.step(2), trained.run.path.parent.parent
    assert_bitwise_equal(
        {k: x for k, x in read_weights(folder).items() if k != "lm_head.weight"},
        trained.weights["step_000002"],
    )
    assert load_tokenizer(str(folder)).encode("3 + 14") == [
        *load_tokenizer(str(trained.base)).encode("3 + 14")
    ]
    assert not (root / "models").exists()  # that needed no merged copy
    merged = resolve_model(str(folder), root)
    assert merged.parent == root / "models"
    assert merged.name.startswith("step_000002-")
    assert_bitwise_equal(load_file(merged / "model.safetensors"), trained.weights["step_000002"])


def test_a_kill_at_any_moment_of_a_merge_leaves_a_sound_checkpoint(trained, tmp_path):
    folder = trained.step(3)
    merge(folder / "adapter", tmp_path / "merged")

    def check(*, is_whole: bool) -> None:
        newest = latest(trained.run.path)
        assert newest is not None
        assert newest.path == folder
        assert (adapter_in(folder) is None) == is_whole
        read_weights(folder)

    # Killed while it writes, by a full disk, or between two of several files.
    litter = folder.parent / ".tmp-step_000003"
    shutil.copytree(tmp_path / "merged", litter)
    check(is_whole=False)

    def fill_the_disk(temporary: Path) -> None:
        (temporary / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        add_weights(folder, fill_the_disk)
    assert not litter.exists()
    check(is_whole=False)
    weights = (tmp_path / "merged/model.safetensors").read_bytes()
    (folder / "model-00001-of-00002.safetensors").write_bytes(weights)
    check(is_whole=False)
    (folder / "model-00001-of-00002.safetensors").unlink()
    # Killed between the weights and the manifest: the next end of training does it again.
    (folder / "model.safetensors").write_bytes(weights)
    check(is_whole=True)
    merge_latest_and_best(trained.config(), trained.run, LOG)
    manifest = read_manifest(folder)
    assert isinstance(manifest, Manifest)
    assert manifest.weights == {"model.safetensors"}
    sizes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert manifest.total_bytes == sizes - (folder / "checkpoint.json").stat().st_size
    check(is_whole=True)


def test_the_next_to_last_checkpoint_makes_room_for_the_merged_weights(trained):
    one = sum(f.stat().st_size for f in trained.step(2).rglob("*") if f.is_file())
    merge_latest_and_best(trained.config(quota_bytes=4 * one), trained.run, LOG)
    assert not trained.step(2).exists()
    assert adapter_in(trained.step(1)) is None


def test_another_base_is_refused_and_one_that_has_gone_leaves_the_adapter(trained, caplog):
    base, folder = trained.base, trained.step(3)
    root = trained.run.path.parent.parent
    base.rename(base.parent / "away")
    with pytest.raises(ValueError, match=r"tiny, which is not on this machine: .*put it back") as e:
        resolve_model(str(folder), root)
    assert "\n" not in str(e.value)
    with caplog.at_level(logging.WARNING, "rl_core"):
        merge_latest_and_best(trained.config(), trained.run, LOG)
    assert "step_000003 holds only the adapter (model.path=" in caplog.text
    assert "step_000003 holds only the adapter (" in str(trained.run.read().reason)
    assert trained.whole() == [False] * 3
    (base.parent / "away").rename(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    digest = base_digest(base)
    model.lm_head.weight.data[3, 4] += 1
    model.save_pretrained(base)
    other = base_digest(base)
    expected = f"sha256 {other[:12]}, and it was trained on those of {digest[:12]}: put these back"
    with pytest.raises(ValueError, match=expected):
        read_weights(folder)
    line = f"began with another model: .*sha256 {other[:12]} and not {digest[:12]}; continue with"
    with pytest.raises(ValueError, match=line):
        check_same_model(trained.run, folder, base)


def test_a_storage_root_that_has_moved_takes_its_base_along(trained, tmp_path):
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere" / trained.step(2).relative_to(tmp_path / "out")
    weights = read_weights(folder)
    weights.pop("lm_head.weight")
    assert_bitwise_equal(weights, trained.weights[folder.name])
