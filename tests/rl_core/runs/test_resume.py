import json
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.manifest import find_damage
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.resume import check_same_code, check_same_model, checkpoint_to_resume
from rl_core.runs.run_folder import RunFolder
from tests.rl_core.test_trainer import comparable, rollouts, settings
from tests.rl_core.test_trainer_memory import LocalWorkers, train_locally
from tests.support.checkpoint_files import (
    cut_a_file,
    flip_a_byte,
    garble_the_manifest,
    lose_the_manifest,
    pointers,
    save_steps,
    saved_files,
    steps,
    writer,
)
from tests.support.runs import new_run


def some_run(root: Path, num_steps: int = 5) -> RunFolder:
    run = new_run(root)
    for step in range(num_steps + 1):
        run.metrics.append(step, {"a": 1.0})
    return run


def train_six_steps(config: RunConfig, model_path: Path, stop_after: int = 99) -> RunFolder:
    """Trains from the latest checkpoint on, in this process; stops like a killed run: no save."""
    run = RunFolder.create(config)
    checkpoint = checkpoint_to_resume(run, logging.getLogger("rl_core").warning)
    start_step = checkpoint.step if checkpoint else 0
    run.cut_after(start_step)

    def die(step: int, last: int, metrics: dict[str, float]) -> None:
        if step == stop_after:
            raise RuntimeError("killed")

    workers = LocalWorkers(config, model_path, checkpoint.path if checkpoint else None)
    train_locally(workers, run, model_path, die, start_step)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> RunFolder:
    """A run that nothing happened to."""
    return train_six_steps(six_steps(tmp_path_factory.mktemp("whole")), tiny_model_path)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> Path:
    """The storage root of the same run, killed after step 5."""
    root = tmp_path_factory.mktemp("killed")
    with pytest.raises(RuntimeError, match="killed"):
        train_six_steps(six_steps(root), tiny_model_path, stop_after=5)
    return root


def six_steps(root: Path) -> RunConfig:
    """With all state that moves: momenta, both schedules, the KL controller, three epochs."""
    controller = {"kl_controller": "adaptive", "kl_target": 0.01, "kl_horizon": 50}
    return settings(
        root,
        "r",
        actor={"lr_schedule": "cosine", "warmup_steps": 2},
        critic={"lr_schedule": "linear"},
        algorithm={"kl_coef": 0.05, **controller},
        trainer={"total_steps": 6},
    )


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (partial(cut_a_file, file="model.safetensors"), "a file cut short"),
        (partial(flip_a_byte, file="trainer/learner.safetensors"), "a flipped byte"),
        (lose_the_manifest, "no manifest"),
        (garble_the_manifest, "half a manifest"),
    ],
)
def test_a_damaged_latest_costs_the_steps_since_the_one_before_and_nothing_else(
    tmp_path, tiny_model_path, whole, killed, damage, where, caplog, survived
):
    shutil.copytree(killed, tmp_path, symlinks=True, dirs_exist_ok=True)
    config = six_steps(tmp_path)
    run = RunFolder(tmp_path / "runs" / "r")
    assert steps(run.path) == [2, 4]
    assert [row["step"] for row in run.metrics.read()] == [0, 1, 2, 3, 4, 5]
    what = damage(run.path / "checkpoints" / "step_000004")

    train_six_steps(config, tiny_model_path)
    assert run.read().reason == (
        f"step_000004 is damaged ({what}): training continues after step 2 and does steps 3 to 5 "
        "again"
    )
    assert run.read().reason in caplog.messages
    rows = comparable(whole)
    assert comparable(run) == rows
    for moving in ("critic/kl_coeff", "actor/lr", "critic/lr"):
        assert len({row[moving] for row in rows[1:]}) > 3
    assert rollouts(run).equals(rollouts(whole))
    ended = [saved_files(r.path / "checkpoints" / "latest") for r in (run, whole)]
    assert ended[0] == ended[1]
    assert steps(run.path) == [2, 4, 6]  # the 4 that was saved again
    assert find_damage(run.path / "checkpoints" / "step_000004") is None
    survived("corrupt checkpoint", where, steps_lost=3)


def test_nothing_is_said_where_nothing_is_wrong(tmp_path):
    run, said = some_run(tmp_path), list[str]()
    assert checkpoint_to_resume(run, said.append) is None
    save_checkpoint(run.path, 4, writer(), 0.5)
    found = checkpoint_to_resume(run, said.append)
    assert found.step == 4
    assert said == []
    assert run.read().reason is None


def test_two_damaged_ones_are_passed_over_and_the_pointers_move(tmp_path):
    run, said = some_run(tmp_path), list[str]()
    save_steps(run.path, {2: 0.2, 3: 0.3, 4: 0.4})
    folder = run.path / "checkpoints"
    cut, flipped = cut_a_file(folder / "step_000004"), flip_a_byte(folder / "step_000003")
    found = checkpoint_to_resume(run, said.append)
    assert found.step == 2
    assert said == [
        f"step_000004 is damaged ({cut}), step_000003 is damaged ({flipped}): training "
        "continues after step 2 and does steps 3 to 5 again"
    ]
    assert pointers(run.path) == ("step_000002", "step_000002")


@pytest.mark.parametrize("damage", [cut_a_file, flip_a_byte])
def test_a_run_without_any_sound_checkpoint_is_refused_each_time_and_loses_nothing(
    tmp_path, damage
):
    run = some_run(tmp_path)
    what = damage(save_checkpoint(run.path, 4, writer(), 0.5))
    metrics = run.metrics.read()
    for _ in range(2):
        with pytest.raises(ValueError, match="no sound checkpoint to continue from") as caught:
            checkpoint_to_resume(run, print)
        assert f"step_000004 is damaged ({what}); put a whole copy in place" in str(caught.value)
        assert "start again with run_id=NAME" in str(caught.value)
    assert run.metrics.read() == metrics


def rewritten(folder: Path, file: str, change: Callable[[Any], None]) -> Path:
    """A model's folder with another content in one of its files."""
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    return folder


def test_a_run_goes_on_with_the_model_that_it_began_with_and_no_other(tmp_path, tiny_model_path):
    run = some_run(tmp_path)
    moved, wider, said_otherwise = (
        shutil.copytree(tiny_model_path, tmp_path / name) for name in ("moved", "wider", "words")
    )
    rewritten(moved, "config.json", lambda config: config.update(dtype="bfloat16"))
    check_same_model(run, tiny_model_path, moved)
    rewritten(wider, "config.json", lambda config: config.update(hidden_size=128))
    with pytest.raises(ValueError, match=r"^r began with another .* hidden_size=128 and not"):
        check_same_model(run, tiny_model_path, wider)
    rewritten(said_otherwise, "tokenizer.json", lambda words: words["model"]["vocab"].popitem())
    with pytest.raises(ValueError, match=r"other tokens in its tokenizer; continue with .*run_id"):
        check_same_model(run, tiny_model_path, said_otherwise)


def test_a_run_goes_on_only_with_the_code_that_it_began_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "changing_code.py"
    run = new_run(tmp_path, algorithm={"estimator": "changing_code:estimate"})
    config = RunConfig.model_validate({"algorithm": {"estimator": "changing_code:estimate"}})
    check_same_code(run, RunConfig(), goes_on=False)
    assert run.read().own_code == {}
    for text in ("one", "two"):  # nothing is learned yet
        file.write_text(text)
        check_same_code(run, config, goes_on=False)
    check_same_code(run, config, goes_on=True)
    file.write_text("three")
    with pytest.raises(ValueError, match="estimator=changing_code:estimate has changed"):
        check_same_code(run, config, goes_on=True)
    other = {"algorithm": {"estimator": "another:estimate"}}
    check_same_code(run, RunConfig.model_validate(other), goes_on=True)
    assert run.read().own_code.keys() == {"changing_code:estimate", "another:estimate"}
