"""Generate: made once, reused while it verifies, and shown as cached in Prefect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from rl_core.config import CountdownConfig, DataConfig, RunConfig, StorageConfig
from rl_core.dataset import DatasetError, read_problems
from tasks.generate import cached_dataset, dataset_folder, generate_dataset, generate_task


def settings(root: Path, **data: int | str) -> RunConfig:
    return RunConfig(
        storage=StorageConfig(root=root),
        env=CountdownConfig(max_operands=3, max_number=20),
        data=DataConfig(**{"train_size": 300, "test_size": 30, **data}),
    )


def test_made_once_and_found_again(tmp_path: Path) -> None:
    config = settings(tmp_path)
    folder = generate_dataset(config)
    assert folder == dataset_folder(config)
    assert folder.parent == tmp_path / "data"
    made = (folder / "train.parquet").stat().st_mtime_ns
    assert generate_dataset(config) == folder
    assert (folder / "train.parquet").stat().st_mtime_ns == made
    assert len(read_problems(folder / "test.parquet")) == 30
    assert [path.name for path in (tmp_path / "data").iterdir()] == [folder.name]


def test_other_settings_make_another_folder(tmp_path: Path) -> None:
    folders = {generate_dataset(settings(tmp_path, seed=seed)) for seed in (0, 1)}
    assert len(folders) == 2


def test_one_name_for_two_data_sets_is_refused(tmp_path: Path) -> None:
    generate_dataset(settings(tmp_path, name="mine"))
    with pytest.raises(ValueError, match=r"data\.seed differs.*another data\.name"):
        generate_dataset(settings(tmp_path, name="mine", seed=1))


def test_damage_is_said_and_never_repaired_in_silence(tmp_path: Path) -> None:
    folder = generate_dataset(settings(tmp_path))
    content = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=r"train\.parquet: not a readable parquet file"):
        generate_task.fn(settings(tmp_path))


@pytest.mark.slow
def test_prefect_shows_it_cached_until_a_file_is_gone(tmp_path: Path) -> None:
    config = settings(tmp_path / "outputs")

    @flow
    def only_generate() -> Path:
        return cached_dataset(config)

    async def states() -> list[str]:
        async with get_client() as client:
            runs = await client.read_task_runs()
        return [run.state_name or "" for run in sorted(runs, key=lambda run: run.created)]

    with (
        temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        folder = only_generate()
        assert only_generate() == folder
        (folder / "test.parquet").unlink()
        assert only_generate() == folder
        assert (folder / "test.parquet").is_file()
        assert only_generate() == folder
        assert asyncio.run(states()) == ["Completed", "Cached", "Completed", "Cached"]
