"""Every check with a table that passes it and one that fails it, and the lengths of prompts."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from rl_core.config import CountdownConfig, DataConfig, Gsm8kConfig, RunConfig
from rl_core.dataset import DatasetError, write_dataset
from rl_core.envs.countdown import render_messages
from tasks.sql import SQL_FOLDER
from tasks.validate import (
    ValidationFailed,
    check_dataset,
    check_files,
    validate_dataset,
    validate_task,
)

COUNTDOWN = RunConfig(
    env=CountdownConfig(max_operands=3, max_number=20),
    data=DataConfig(train_size=256, test_size=12),
)
GSM8K_QUESTIONS = {"train": ["Nine twice?", "Rent?"], "test": ["Half?"]}

Rows = list[dict[str, Any]]
Break = Callable[[Rows, Rows], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, pa.Table]]:
    """Both splits of a sound data set, per env."""
    folder = tmp_path_factory.mktemp("sound")
    for split, questions in GSM8K_QUESTIONS.items():
        records = [{"question": q, "answer": f"So.\n#### {len(q)},000"} for q in questions]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))
    write_dataset(COUNTDOWN.env, COUNTDOWN.data, folder / "countdown")
    write_dataset(Gsm8kConfig(source=str(folder)), DataConfig(), folder / "gsm8k")
    return {
        env: {
            split: pq.read_table(folder / env / f"{split}.parquet").replace_schema_metadata()
            for split in ("train", "test")
        }
        for env in ("countdown", "gsm8k")
    }


def ten_tokens(_: object) -> int:
    return 10


def failing(
    config: RunConfig, tables: dict[str, pa.Table], folder: Path, break_rows: Break | None
) -> dict[str, int]:
    """Offending rows of each check that fails once the rows are broken."""
    rows = {split: copy.deepcopy(table.to_pylist()) for split, table in tables.items()}
    if break_rows is not None:
        break_rows(rows["train"], rows["test"])
    for split, table in tables.items():
        broken = pa.Table.from_pylist(rows[split], schema=table.schema)
        pq.write_table(broken, folder / f"{split}.parquet")
    return failed_checks(config, folder)


def failed_checks(config: RunConfig, folder: Path) -> dict[str, int]:
    try:
        results = check_dataset(config, folder, ten_tokens)
    except ValidationFailed as failed:
        results = failed.results
    return {result["check"]: result["rows"] for result in results if result["status"] == "failed"}


def restate(row: dict[str, Any], **changes: Any) -> None:
    """Changes a problem everywhere it is written, so that it stays one sound problem."""
    row.update(changes)
    row["prompt"] = render_messages("base", row["nums"], row["target"])
    row["reward_model"]["ground_truth"] = {"target": row["target"], "numbers": row["nums"]}


def solved(row: dict[str, Any], nums: list[int], target: int, solution: str) -> None:
    restate(row, nums=nums, target=target)
    row["extra_info"]["solution"] = solution


def numbers_out_of_range(train: Rows, test: Rows) -> None:
    solved(train[0], [21, 5, 1], 25, "21 + 5 - 1")
    solved(test[0], [0, 5, 8], 40, "5 * 8 + 0")


def too_few_and_too_many_numbers(train: Rows, test: Rows) -> None:
    solved(train[1], [20, 5], 25, "20 + 5")
    solved(test[1], [20, 5, 1, 1], 25, "20 + 5 * 1 * 1")


def targets_out_of_range(train: Rows, test: Rows) -> None:
    solved(train[2], [20, 5, 1], 100, "20 * 5 * 1")
    solved(test[2], [5, 3, 1], 9, "5 + 3 + 1")


def the_same_problem_twice(train: Rows, _: Rows) -> None:
    twin = train[3]
    solved(train[4], twin["nums"][::-1], twin["target"], twin["extra_info"]["solution"])


def a_training_problem_in_test(train: Rows, test: Rows) -> None:
    twin = train[3]
    turned = twin["nums"][1:] + twin["nums"][:1]
    solved(test[4], turned, twin["target"], twin["extra_info"]["solution"])


def the_truth_of_another_problem(train: Rows, test: Rows) -> None:
    train[5]["reward_model"]["ground_truth"]["target"] = 98
    test[5]["reward_model"]["ground_truth"]["numbers"] = [1, 2, 3]


def other_prompts(train: Rows, test: Rows) -> None:
    train[6]["prompt"] = train[7]["prompt"]
    test[6]["prompt"] = render_messages("base", test[6]["nums"], test[6]["target"] + 1)
    test[7]["prompt"].append({"role": "assistant", "content": "1"})


def wrong_solutions(train: Rows, test: Rows) -> None:
    train[8]["extra_info"]["solution"] += " + 0"
    train[9]["extra_info"]["solution"] = train[10]["extra_info"]["solution"]
    solved(test[8], [2, 5, 2], 34, "2**5 + 2")  # what eval would accept
    test[9]["extra_info"]["num_solutions"] = 0


def too_few_rows(train: Rows, test: Rows) -> None:
    train.pop()


def no_rows(_: Rows, test: Rows) -> None:
    test.clear()


def other_labels(train: Rows, test: Rows) -> None:
    train[0]["data_source"] = "mine"
    train[1]["ability"] = "code"
    test[0]["reward_model"]["style"] = "model"


def indices_with_gaps(train: Rows, test: Rows) -> None:
    train[-1]["extra_info"]["index"] = len(train)  # one past the end
    test[0]["extra_info"]["index"] = 1  # twice, so that 0 is missing


def the_other_split(train: Rows, test: Rows) -> None:
    train[0]["extra_info"]["split"] = "test"
    test[0]["extra_info"]["split"] = "train"


def nulls_in_countdown(train: Rows, test: Rows) -> None:
    train[0]["nums"][0] = None
    train[1]["extra_info"]["solution"] = None
    train[2]["ability"] = None
    test[0]["reward_model"] = None
    test[1]["prompt"][0]["content"] = None


def nulls_in_gsm8k(train: Rows, test: Rows) -> None:
    train[0]["prompt"][0]["content"] = None
    train[1]["extra_info"]["solution"] = None
    test[0]["data_source"] = None


def other_truths(train: Rows, test: Rows) -> None:
    train[0]["reward_model"]["ground_truth"] = "many"
    train[1]["reward_model"]["ground_truth"] = "12"


def a_prompt_without_hashes(_: Rows, test: Rows) -> None:
    test[0]["prompt"][0]["content"] = "Half?"


COUNTDOWN_BREAKS: list[tuple[Break | None, dict[str, int]]] = [
    (None, {}),
    (numbers_out_of_range, {"countdown_number_range": 2}),
    (too_few_and_too_many_numbers, {"countdown_operand_count": 2}),
    (targets_out_of_range, {"countdown_target_range": 2}),
    (the_same_problem_twice, {"countdown_unique": 1}),
    (a_training_problem_in_test, {"countdown_splits_disjoint": 1}),
    (the_truth_of_another_problem, {"countdown_ground_truth": 2}),
    (other_prompts, {"countdown_prompt": 3}),
    (wrong_solutions, {"countdown_solution": 4}),
    (too_few_rows, {"countdown_row_count": 1}),
    (no_rows, {"countdown_row_count": 1, "splits_not_empty": 1}),
    (other_labels, {"countdown_labels": 3}),
    (indices_with_gaps, {"index_gapless": 2}),
    (the_other_split, {"split_label": 2}),
    (
        nulls_in_countdown,
        {
            "countdown_no_nulls": 5,
            "countdown_ground_truth": 2,
            "countdown_labels": 2,
            "countdown_prompt": 2,
            "countdown_solution": 2,
        },
    ),
]
GSM8K_BREAKS: list[tuple[Break | None, dict[str, int]]] = [
    (None, {}),
    (other_truths, {"gsm8k_ground_truth": 2}),
    (a_prompt_without_hashes, {"gsm8k_prompt": 1}),
    (other_labels, {"gsm8k_labels": 3}),
    (
        nulls_in_gsm8k,
        {"gsm8k_no_nulls": 3, "gsm8k_ground_truth": 1, "gsm8k_labels": 1, "gsm8k_prompt": 1},
    ),
]


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", "sound" if value is None else "")


@pytest.mark.parametrize(("break_rows", "expected"), COUNTDOWN_BREAKS, ids=name_of)
def test_countdown_checks(
    sound: dict[str, Any], tmp_path: Path, break_rows: Break | None, expected: dict[str, int]
) -> None:
    assert failing(COUNTDOWN, sound["countdown"], tmp_path, break_rows) == expected


@pytest.mark.parametrize(("break_rows", "expected"), GSM8K_BREAKS, ids=name_of)
def test_gsm8k_checks(
    sound: dict[str, Any], tmp_path: Path, break_rows: Break | None, expected: dict[str, int]
) -> None:
    config = RunConfig(env=Gsm8kConfig())
    assert failing(config, sound["gsm8k"], tmp_path, break_rows) == expected


def as_floats(table: pa.Table) -> pa.Table:
    return table.set_column(1, "target", table["target"].cast(pa.float64()))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.drop_columns(["ability"]), id="missing"),
        pytest.param(lambda table: table.append_column("x", table["target"]), id="unexpected"),
        pytest.param(lambda table: table.select(table.column_names[::-1]), id="other order"),
        pytest.param(as_floats, id="other type"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_columns_are_checked_first_and_alone(
    sound: dict[str, Any], tmp_path: Path, change: Callable[[pa.Table], pa.Table], split: str
) -> None:
    tables = sound["countdown"] | {split: change(sound["countdown"][split])}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert set(failed_checks(COUNTDOWN, tmp_path)) == {"countdown_columns"}


def test_gsm8k_columns_are_checked(sound: dict[str, Any], tmp_path: Path) -> None:
    for split, table in sound["countdown"].items():
        pq.write_table(table, tmp_path / f"{split}.parquet")
    assert set(failed_checks(RunConfig(env=Gsm8kConfig()), tmp_path)) == {"gsm8k_columns"}


def test_every_check_has_a_table_that_fails_it() -> None:
    files = {path.stem for path in (SQL_FOLDER / "checks").rglob("*.sql")}
    seen = set[str]().union(*(names for _, names in COUNTDOWN_BREAKS + GSM8K_BREAKS))
    assert files == seen | {"countdown_columns", "gsm8k_columns"}
    run = {path.stem for env in (COUNTDOWN.env, Gsm8kConfig()) for path in check_files(env)}
    assert run == files, "no file is left out"


def test_the_error_shows_check_count_and_first_rows(sound: dict[str, Any], tmp_path: Path) -> None:
    def swap_labels(train: Rows, _: Rows) -> None:
        for row in train[:5]:
            row["extra_info"]["split"] = "dev"

    failing(COUNTDOWN, sound["countdown"], tmp_path, swap_labels)
    with pytest.raises(ValidationFailed) as caught:
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)
    message = str(caught.value)
    assert "check split_label failed on 5 rows, not true: nobody swapped the files" in message
    assert '{"split": "train", "index": 0, "label": "dev"}' in message
    assert '"index": 2' in message
    assert '"index": 3' not in message, "only the first three"
    assert "\n" not in message
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.results) == (message, caught.value.results)


def test_prompt_lengths_are_measured_against_the_limit(
    sound: dict[str, Any], tmp_path: Path
) -> None:
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    lengths = iter(list(range(1, 257)) + [7] * 12)
    results = check_dataset(COUNTDOWN, tmp_path, lambda _: next(lengths))
    train, test = results[-2:]
    assert train["check"] == "prompt_tokens_train"
    assert "=256 tokens (min 1, mean 128.5, p99 253, max 256)" in train["proves"]
    assert "(min 7, mean 7.0, p99 7, max 7)" in test["proves"]

    lengths = iter(list(range(3, 259)) + [7] * 12)
    with pytest.raises(ValidationFailed, match=r"prompt_tokens_train failed on 2 rows") as caught:
        check_dataset(COUNTDOWN, tmp_path, lambda _: next(lengths))
    assert '{"index": 254, "prompt_tokens": 257}' in str(caught.value)


def test_the_real_tokenizer_measures(
    sound: dict[str, Any], tmp_path: Path, tiny_model_path: Path
) -> None:
    """The tiny model's tokenizer has one token per byte: a prompt is as long as its text."""
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    longest = max(
        len(row[0]["content"]) for row in sound["countdown"]["train"]["prompt"].to_pylist()
    )
    with pytest.raises(ValidationFailed, match=f"p99 {longest - 1}, max {longest}|max {longest}"):
        validate_dataset(COUNTDOWN, tmp_path, tiny_model_path)
    room = DataConfig(train_size=256, test_size=12, max_prompt_length=longest)
    results = validate_dataset(
        COUNTDOWN.model_copy(update={"data": room}), tmp_path, tiny_model_path
    )
    assert {result["status"] for result in results} == {"ok"}
    assert len(results) == len(check_files(COUNTDOWN.env)) + 2


def test_truncated_or_missing_files_are_data_set_errors(
    sound: dict[str, Any], tmp_path: Path
) -> None:
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    path = tmp_path / "test.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match=r"test\.parquet: not a readable parquet file"):
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)
    path.unlink()
    with pytest.raises(DatasetError, match=r"test\.parquet is missing"):
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)


@pytest.mark.slow
def test_prefect_shows_the_table_even_of_a_failure(
    sound: dict[str, Any], tmp_path: Path, tiny_model_path: Path
) -> None:
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)

    @flow
    def only_validate() -> None:
        validate_task(COUNTDOWN, tmp_path, tiny_model_path)

    async def table() -> Any:
        async with get_client() as client:
            artifacts = await client.read_artifacts()
        return {artifact.key: artifact for artifact in artifacts}["validation"]

    with prefect_test_harness(server_startup_timeout=120):
        with pytest.raises(ValidationFailed, match="prompt_tokens_train"):
            only_validate()
        artifact = asyncio.run(table())
    assert artifact.type == "table"
    rows = json.loads(artifact.data)
    assert [row["status"] for row in rows[-2:]] == ["failed", "failed"]
    assert {row["check"] for row in rows} >= {"countdown_unique", "index_gapless"}
