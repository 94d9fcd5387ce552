import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.cli.main import run_command
from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import read_problems, write_dataset
from rl_core.envs.countdown import CountdownConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.training import train_model
from tasks.generate import generate_dataset
from tasks.validate import check_dataset
from tests.support.own_data import SOLVABLE, tinyzero_row, write_tinyzero


def ten_tokens(prompts: Sequence[object]) -> list[int]:
    return [10] * len(prompts)


def prepared(root: Path, rows: list[dict[str, object]], **env: object) -> tuple[RunConfig, Path]:
    (root / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = RunConfig.model_validate(
        {
            "storage": {"root": root},
            "env": {"name": "countdown", **env},
            "data": {"train_files": str(root / "mine.jsonl"), "test_size": 2},
        }
    )
    return config, generate_dataset(config)


def test_ranges_and_sizes_of_the_generator_do_not_apply(tmp_path):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    narrow = {"min_operands": 5, "max_operands": 5, "max_number": 2, "max_target": 10}
    config, data = prepared(tmp_path, rows, **narrow)
    checks = check_dataset(config, data, ten_tokens).checks
    results = {result["check"]: result["status"] for result in checks}
    assert set(results.values()) == {"ok"}
    assert not any(name.endswith(("range", "count")) for name in results)
    for name in ("columns", "no_nulls", "unique", "splits_disjoint", "solution", "ground_truth"):
        assert f"countdown_{name}" in results


def test_foreign_prompts_are_a_warning_in_words(tmp_path, caplog):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    rows[1]["prompt"] = [{"role": "user", "content": "Make 16 of 3, 5 and 8."}]
    config, data = prepared(tmp_path, rows)
    caplog.clear()
    checks = check_dataset(config, data, ten_tokens).checks
    results = {result["check"]: result for result in checks}
    assert results["countdown_prompt"]["status"] == "warning"
    assert results["countdown_prompt"]["rows"] == 1
    (warning,) = caplog.messages
    assert "check countdown_prompt, of your own prompts: not true for 1 rows" in warning
    assert "Make 16 of 3, 5 and 8." in warning


def test_a_mistake_in_own_files_is_bad_input_in_one_line(cli, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"nums": [0, 5], "target": 5}\n')
    for name, words in (
        ("none.jsonl", "there is no such file"),
        ("mine.jsonl", "row 1: nums=[0, 5] holds 0"),
    ):
        err = cli("generate", f"data.train_files={tmp_path / name}", code=2).err
        assert words in err
        assert len(err.splitlines()) == 1


def test_too_few_rows_for_a_batch_are_said_before_anything_starts(tmp_path, tiny_model_path):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    config, data = prepared(tmp_path, rows)
    with pytest.raises(ValueError, match=r"data\.train_batch_size=256 is above the 4 training"):
        train_model(
            config,
            RunFolder.create(config),
            data=data,
            model_path=tiny_model_path,
            on_step=lambda *_: None,
            logger=logging.getLogger(__name__),
        )


@pytest.mark.slow
def test_a_tinyzero_file_is_trained_from(tmp_path, tiny_overrides, capsys):
    write_dataset(CountdownConfig(), DataConfig(train_size=40, test_size=1), tmp_path / "made")
    made = pq.read_table(tmp_path / "made" / "train.parquet", columns=["nums", "target"])
    problems = [(row["nums"], row["target"]) for row in made.to_pylist()]
    train = write_tinyzero(tmp_path / "train.parquet", problems[:32])
    test = write_tinyzero(tmp_path / "test.parquet", problems[32:])
    code = run_command(
        [
            "train",
            *tiny_overrides,
            f"storage.root={tmp_path}",
            "run_id=own",
            f"data.train_files={train}",
            f"data.test_files={test}",
            "trainer.total_steps=2",
        ]
    )
    assert code == 0, capsys.readouterr().err
    run = tmp_path / "runs" / "own"
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("finished", 2)
    asked = {json.dumps(problem.messages) for problem in read_problems(train)}
    trained = {
        json.dumps(problem.messages)
        for problem in read_problems(Path(record["data"]) / "train.parquet")
    }
    assert trained == asked
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
