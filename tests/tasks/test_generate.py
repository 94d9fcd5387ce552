import random
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prefect import flow

from rl_core.config.operations import StorageConfig
from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import DatasetError, dataset_folder, read_problems
from rl_core.envs.countdown import Countdown
from tasks.generate import cache_key, dataset_task, generate_dataset, generate_task
from tasks.validate import ValidationFailed, validate_dataset
from tests.support.brute_force import brute_force

REPOSITORY = Path(__file__).parents[2]


def settings(root: Path, **data: int | str) -> RunConfig:
    return RunConfig(
        storage=StorageConfig(root=root),
        env=Countdown(max_operands=3, max_number=20),
        data=DataConfig(**{"train_size": 300, "test_size": 30, **data}),
    )


def data_sets(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "data").iterdir() if path.name != ".lock")


def test_made_once_and_found_again(tmp_path):
    config = settings(tmp_path)
    folder = generate_dataset(config)
    assert folder == dataset_folder(config)
    assert folder.parent == tmp_path / "data"
    made = (folder / "train.parquet").stat().st_mtime_ns
    assert generate_dataset(config) == folder
    assert (folder / "train.parquet").stat().st_mtime_ns == made
    assert len(read_problems(folder / "test.parquet")) == 30
    assert data_sets(tmp_path) == [folder.name]


def test_one_name_for_two_data_sets_is_refused(tmp_path):
    generate_dataset(settings(tmp_path, name="mine"))
    with pytest.raises(ValueError, match=r"data\.seed differs.*another data\.name"):
        generate_dataset(settings(tmp_path, name="mine", seed=1))


def test_own_files_are_made_once_and_again_after_a_change(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"nums": [1, 2], "target": 3}\n{"nums": [4, 5], "target": 9}\n')
    config = settings(tmp_path, train_files=str(file), test_size=1)
    folder = generate_dataset(config)
    assert [p.index for p in read_problems(folder / "train.parquet")] == [0]
    made = (folder / "train.parquet").stat().st_mtime_ns
    key = cache_key(None, {"config": config})  # type: ignore[arg-type]  # the context is not used
    assert generate_dataset(config) == folder
    assert (folder / "train.parquet").stat().st_mtime_ns == made
    with file.open("a") as lines:
        lines.write('{"nums": [6, 7], "target": 13}\n')
    assert generate_dataset(config) != folder
    assert cache_key(None, {"config": config}) != key  # type: ignore[arg-type]


def test_damage_is_said_and_never_repaired_in_silence(tmp_path):
    folder = generate_dataset(settings(tmp_path))
    content = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=r"train\.parquet: not a readable parquet file"):
        generate_task.fn(settings(tmp_path))


GENERATE = """
import pathlib, sys
from tasks.generate import generate_dataset
from tests.support.faults import die_at_event
from tests.tasks.test_generate import settings

num_events = die_at_event(int(sys.argv[2]))
print("starting", flush=True)
generate_dataset(settings(pathlib.Path(sys.argv[1]), train_size=4_000))
print(num_events(), flush=True)
"""


def start_generating(root: Path, fatal_event: int = 0) -> subprocess.Popen[str]:
    """Generates in a process that SIGKILLs itself at a system event, if any."""
    command = [sys.executable, "-c", GENERATE, str(root), str(fatal_event)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout.readline() == "starting\n"
    return process


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_killed_generation_leaves_nothing_that_looks_finished(tmp_path):
    """SIGKILL at a random moment, and at each of the last events: while files are written."""
    started = time.monotonic()
    undisturbed = start_generating(tmp_path / "whole")
    said, _ = undisturbed.communicate()
    duration, num_events = time.monotonic() - started, int(said)
    whole = contents(dataset_folder(settings(tmp_path / "whole", train_size=4_000)))
    assert set(whole) == {"train.parquet", "test.parquet"}
    num_halves = 0
    for number, fatal_event in enumerate((0, *range(num_events - 2, num_events + 1))):
        config = settings(tmp_path / f"killed_{number}", train_size=4_000)
        folder = dataset_folder(config)
        process = start_generating(config.storage.root, fatal_event)
        if not fatal_event:
            time.sleep(random.Random(0).uniform(0, duration))
            process.kill()
        assert process.wait() == -signal.SIGKILL or not fatal_event
        num_halves += any(folder.parent.glob(".tmp-*"))
        if folder.exists():
            assert contents(folder) == whole, "what has its name is whole"
    assert num_halves > 0
    for number in range(4):
        config = settings(tmp_path / f"killed_{number}", train_size=4_000)
        assert contents(generate_dataset(config)) == whole
        assert data_sets(config.storage.root) == [dataset_folder(config).name]


@pytest.mark.slow
def test_the_default_data_set_whole(tmp_path, tiny_model_path):
    """327,680 + 1,024 rows by the command's own path, read by another library, against brute force.

    Brute force tries every expression and knows neither the solver nor its normal form.
    """
    config = RunConfig(storage=StorageConfig(root=tmp_path))
    folder = generate_dataset(config)
    splits = {split: pl.read_parquet(folder / f"{split}.parquet") for split in ("train", "test")}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 327_680, "test": 1_024}
    together = pl.concat(splits.values())
    assert together.select(pl.col("nums").list.sort(), "target").n_unique() == 328_704
    assert together["nums"].list.len().value_counts().sort("nums").rows() == [
        (3, 164_352),
        (4, 164_352),
    ]
    assert together["nums"].list.min().min() == 1
    assert together["nums"].list.max().max() == 99
    assert together["target"].is_between(10, 99).all()
    for split, rows in splits.items():
        extra = rows["extra_info"].struct.unnest()
        assert extra["index"].to_list() == list(range(len(rows)))
        assert (extra["split"] == split).all()
        assert (extra["num_solutions"] >= 1).all()
    for row in together.sample(60, seed=0).iter_rows(named=True):
        assert_solved_as_brute_force_says(row)

    room = config.data.model_copy(update={"max_prompt_length": 1024})
    validation = validate_dataset(config.model_copy(update={"data": room}), folder, tiny_model_path)
    assert {check["status"] for check in validation.checks} == {"ok"}
    assert validation.lengths is not None
    longest = together["prompt"].list.first().struct.field("content").str.len_chars().max()
    assert f" to {longest} tokens" in validation.lengths.verdict
    with pytest.raises(ValidationFailed, match="all 328,704 prompts are rejected"):
        validate_dataset(config, folder, tiny_model_path)


def assert_solved_as_brute_force_says(row: dict[str, Any]) -> None:
    solution, nums, target = row["extra_info"]["solution"], row["nums"], row["target"]
    assert row["extra_info"]["num_solutions"] == brute_force(tuple(nums))[target]
    assert set(solution) <= set("0123456789+-*/() ")
    exact = re.sub(r"(\d+)", r"Fraction(\1)", solution)
    assert eval(exact, {"Fraction": Fraction}) == target  # checked just above
    assert sorted(int(number) for number in re.findall(r"\d+", solution)) == sorted(nums)
    (message,) = row["prompt"]
    question = f"Using the numbers {nums}, create an equation that equals {target}. "
    assert question in message["content"]
    assert row["reward_model"]["ground_truth"] == {"target": target, "numbers": nums}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_prefect_shows_it_cached_until_a_file_is_gone(tmp_path):
    config = settings(tmp_path)

    @flow
    def only_generate() -> str:
        return str(dataset_task(config)(config, return_state=True).name)

    assert [only_generate() for _ in range(2)] == ["Completed", "Cached"]
    missing = dataset_folder(config) / "test.parquet"
    missing.unlink()
    assert [only_generate() for _ in range(2)] == ["Completed", "Cached"]
    assert missing.is_file()
