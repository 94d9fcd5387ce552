import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.errors import one_line
from flows.runs.run_record import recorded
from flows.runs.summary import summary_lines
from rl_core.evaluation.rows import read_rows
from rl_core.runs.run_folder import RunFolder, write_unless_full
from rl_core.system.disk_reserve import RESERVE_BYTES, hold_reserve
from tasks.evaluate import evaluate_with
from tasks.promote import promote_run
from tasks.report import write_report
from tests.support.faults import leave_free, mounted_small_disk
from tests.tasks.test_evaluate import KnowingEngines, finished_run, settings, write_data


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path, RESERVE_BYTES + 4 * 2**20) as folder:
        yield folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in ("ballast", ".lock", ".owner", ".reserve", "run.json", "log.txt")
    }


@pytest.mark.chaos
def test_a_full_disk_costs_rows_and_report_only(tmp_path, disk, tiny_model_path, survived):
    data = write_data(tmp_path / "data")
    config = settings(disk)
    run = finished_run(config, tiny_model_path)
    run.metrics.append(7, {"val/accuracy": 0.5})
    before = files(disk)
    leave_free(disk, 0)
    with recorded(run) as stage:
        with stage("evaluate"):
            evaluate_with(KnowingEngines(tiny_model_path), config, run, data, tiny_model_path)
        promotion = promote_run(config, run, data, tiny_model_path)
        with stage("report"):
            report = write_report(run.path, is_last_stage=True)
    record = run.read()
    assert (record.status, record.accuracy_before, record.accuracy_after) == ("finished", 0.25, 1.0)
    assert promotion.reason == "not promoted: the rows of its evaluation were not kept"
    rows = ("eval/base.parquet", "eval/step_000007.parquet")
    lost = dict.fromkeys(rows, "evaluate run_id=r") | {"report.html": "report r"}
    for sentence, product in zip(record.reason.split("; "), lost, strict=True):
        assert sentence.startswith(f"{product} was not written, the disk of {run.path} is full (")
        assert sentence.endswith(
            f"delete other runs or files there, then `countdown-train {lost[product]}` writes it"
        )
    assert files(disk) == before  # nothing new, no halves, nothing gone
    assert "eval/base.parquet was not written" in (run.path / "log.txt").read_text()
    assert "eval/base.parquet was not written" in report.page
    assert any(record.reason in line for line in summary_lines(run))

    (disk / "ballast").unlink()
    evaluate_with(KnowingEngines(tiny_model_path), config, run, data, tiny_model_path)
    assert len(read_rows(run.path / "eval" / "step_000007.parquet")) == 4 + 4 * 2
    assert write_report(run.path).html.stat().st_size > 10_000
    rows_lost = len(before.keys() - files(disk).keys())
    survived("ENOSPC", "evaluation rows", rows_lost=rows_lost)
    survived("ENOSPC", "report.html", rows_lost=rows_lost)


def test_a_product_waits_until_the_reserve_is_back(disk, tiny_model_path):
    run = finished_run(settings(disk), tiny_model_path)
    hold_reserve(run.path)
    leave_free(disk, 0)
    run.update(champion="w" * 5_000)  # last words, at the expense of the reserve
    assert not write_unless_full(run, "x", (run.path / "x").touch, remedy="try again")
    assert not (run.path / "x").exists()
    (disk / "ballast").unlink()
    assert write_unless_full(run, "x", (run.path / "x").touch, remedy="try again")


def test_what_is_no_full_disk_is_an_error(tmp_path):
    run = RunFolder.create(settings(tmp_path))
    with pytest.raises(FileNotFoundError):
        write_unless_full(run, "x", (tmp_path / "none" / "x").touch, remedy="try again")
    assert run.read().reason is None


def test_a_failure_by_a_full_disk_names_the_place_and_what_to_do(disk):
    leave_free(disk, 0)
    with pytest.raises(OSError, match="No space left") as caught:
        shutil.copyfile("/bin/sh", disk / "copy")
    words = one_line(caught.value)
    assert "No space left on device" in words
    assert str(disk) in words
    assert words.endswith(
        ": delete other runs or files, or set storage.root to a folder of another disk; "
        "checkpoints.keep_last=1 keeps fewer checkpoints"
    )
    assert len(one_line(OSError(28, "w" * 1_000))) == 400
