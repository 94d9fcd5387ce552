"""The user's own problems: every shape of row, what is dropped and counted, what is refused."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from rl_core.config.run import DataConfig
from rl_core.data.dataset import dataset_name, is_ready, read_problems, read_verified, write_dataset
from rl_core.envs.countdown import Countdown
from rl_core.envs.countdown.puzzles import COUNTDOWN_DATASET
from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.templates import render_messages
from rl_core.envs.gsm8k import Gsm8k
from tests.support.own_data import (
    SOLVABLE,
    TINYZERO,
    UNSOLVABLE,
    tinyzero_row,
    verl_gsm8k_row,
    write_rows,
    write_tinyzero,
)
from tests.support.solving import solve

TABLES = yaml.safe_load(Path(__file__).with_name("user_files.yaml").read_text())

ENV = Countdown()
Row = dict[str, Any]


def plain(problems: Sequence[tuple[list[int], int]]) -> list[Row]:
    return [{"nums": numbers, "target": target} for numbers, target in problems]


def write_lines(file: Path, rows: list[Row]) -> str:
    return str(write_rows(file, rows))


def made(env: Countdown | Gsm8k, data: DataConfig, folder: Path) -> dict[str, list[Row]]:
    """Rows of both splits as they lie on disk."""
    write_dataset(env, data, folder)
    return {
        split: pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test")
    }


def facts(folder: Path) -> Row:
    metadata = pq.read_metadata(folder / "train.parquet").metadata
    stored: Row = json.loads(metadata[b"countdown_train.own_files"])
    return stored


@pytest.mark.parametrize("row", TABLES["rows as people have them"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_countdown_rows_are_read_as_people_have_them(tmp_path, row, ending):
    other = {"nums": [1, 2], "target": 3}
    rows = [other | {name: None for name in row if name not in other} | row] * 2
    rows = [{k: v for k, v in one.items() if k in row} for one in rows]
    file = write_lines(tmp_path / f"a.{ending}", rows)
    more = write_lines(tmp_path / "more.jsonl", plain([([1, 2], 3)]))
    data = DataConfig(train_files=(file,), test_files=(more,))
    (read,) = made(ENV, data, tmp_path / "out")["train"]
    assert (read["nums"], read["target"]) == ([3, 14, 7], 35)


@pytest.mark.parametrize("answer", ["4", " 4 ", 4, 4.0, "$4", "1,004", "#### $4.\n"])
def test_gsm8k_answers_may_be_plain_numbers(tmp_path, answer):
    rows = [{"question": asked, "answer": answer} for asked in ("0?", "1 ?", " 1  ?")]
    data = DataConfig(train_files=(write_lines(tmp_path / "a.jsonl", rows),), test_size=1)
    (_,), (read,) = made(Gsm8k(), data, tmp_path / "out").values()  # white space is no other
    assert read["reward_model"]["ground_truth"] == ("1004" if answer == "1,004" else "4")
    assert not read["extra_info"]["solution"].endswith("\n")


def test_numbers_and_targets_become_whole_rows(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", plain(SOLVABLE[:4]))
    test = write_lines(tmp_path / "test.jsonl", plain(SOLVABLE[4:]))
    env = Countdown(prompt_template="qwen-instruct")
    data = DataConfig(train_files=(train,), test_files=(test,), test_size=1)
    rows = made(env, data, tmp_path / "out")
    assert [len(rows["train"]), len(rows["test"])] == [4, 2], "test files are taken whole"
    for split, problems in (("train", SOLVABLE[:4]), ("test", SOLVABLE[4:])):
        for index, (row, (numbers, target)) in enumerate(zip(rows[split], problems, strict=True)):
            assert (row["nums"], row["target"]) == (numbers, target)
            assert row["data_source"] == "countdown"
            assert row["prompt"] == render_messages("qwen-instruct", numbers, target)
            truth = {"target": target, "numbers": numbers}
            assert row["reward_model"] == {"style": "rule", "ground_truth": truth}
            extra = row["extra_info"]
            assert (extra["split"], extra["index"]) == (split, index)
            assert (extra["solution"], extra["num_solutions"]) == solve(numbers, target)
            answer = f"<answer>{extra['solution']}</answer>"
            assert score_response(answer, numbers, target).verdict == "correct"
        schema = pq.read_schema(tmp_path / "out" / f"{split}.parquet")
        assert schema.remove_metadata().equals(COUNTDOWN_DATASET)
    read_verified(tmp_path / "out" / "train.parquet")


def test_a_tinyzero_file_is_taken_as_it_is(tmp_path, caplog):
    file = write_tinyzero(tmp_path / "train.parquet", SOLVABLE)
    data = DataConfig(train_files=(str(file),), test_size=2)
    with caplog.at_level(logging.INFO):
        rows = made(ENV, data, tmp_path / "out")
    for name in ("nums", "target", "data_source", "prompt", "ability", "reward_model"):
        assert [row[name] for row in rows["train"] + rows["test"]] == (
            pq.read_table(file)[name].to_pylist()
        )
    assert [row["extra_info"]["index"] for row in rows["test"]] == [0, 1]
    assert caplog.messages == ["own files: train has 4 of 4 rows; test has 2 of 2 rows"]


def test_our_own_files_are_read_back_as_they_were(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", plain(SOLVABLE))
    first = made(ENV, DataConfig(train_files=(file,), test_size=2), tmp_path / "one")
    again = DataConfig(
        train_files=(f"{tmp_path}/one/tr*.parquet",), test_files=(f"{tmp_path}/one/test.parquet",)
    )
    assert made(ENV, again, tmp_path / "two") == first


def test_without_test_files_the_split_is_tinyzeros(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", plain(SOLVABLE))

    def targets(train_size: int, test_size: int) -> list[list[int]]:
        data = DataConfig(train_files=(file,), train_size=train_size, test_size=test_size)
        rows = made(ENV, data, tmp_path / f"{train_size}-{test_size}")
        return [[row["target"] for row in rows[split]] for split in ("train", "test")]

    assert targets(2, 3) == [[98, 16], [14, 91, 8]], "rows 0..1, then 2..4; row 5 is left out"
    assert targets(100, 2) == [[98, 16, 14, 91], [8, 20]], "fewer rows: the last two"
    stored = facts(tmp_path / "2-3")
    assert stored["rows_read"] == {"train": 2, "test": 3}
    assert stored["left_out"]["train"] == {"beyond data.train_size=2": 1}
    with pytest.raises(
        ValueError, match=r"hold 6 rows, no more than data\.test_size=6.*test_files"
    ):
        targets(100, 6)


def test_what_would_spoil_a_measurement_is_dropped_and_counted(tmp_path, caplog):
    turned = [(numbers[::-1], target) for numbers, target in SOLVABLE]
    train = write_lines(
        tmp_path / "train.jsonl",
        plain([SOLVABLE[0], turned[0], UNSOLVABLE, turned[1], SOLVABLE[2], SOLVABLE[0]]),
    )
    test = write_lines(
        tmp_path / "test.jsonl", plain([SOLVABLE[1], SOLVABLE[3], turned[3], UNSOLVABLE])
    )
    with caplog.at_level(logging.INFO):
        rows = made(ENV, DataConfig(train_files=(train,), test_files=(test,)), tmp_path / "out")
    assert [row["nums"] for row in rows["train"]] == [SOLVABLE[0][0], SOLVABLE[2][0]]
    assert [row["nums"] for row in rows["test"]] == [SOLVABLE[1][0], SOLVABLE[3][0]], "test wins"
    assert [row["extra_info"]["index"] for row in rows["train"]] == [0, 1], "without gaps"
    counts = {
        "train": {"in the test split": 1, "duplicates": 2, "without a solution": 1},
        "test": {"duplicates": 1, "without a solution": 1},
    }
    stored = facts(tmp_path / "out")
    assert stored["left_out"] == counts
    assert stored["files"]["test"][0]["file"] == test
    assert caplog.messages == [
        "own files: train has 2 of 6 rows, left out: 2 duplicates, 1 in the test split, "
        "1 without a solution; test has 2 of 4 rows, left out: 1 duplicates, 1 without a solution"
    ]


def test_a_split_without_a_row_left_is_refused(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", plain(SOLVABLE[:2]))
    with pytest.raises(ValueError, match=r"train has 0 of 2 rows, left out: 2 in the test split"):
        made(ENV, DataConfig(train_files=(file,), test_files=(file,)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_foreign_prompts_are_kept(tmp_path):
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(SOLVABLE)]
    rows[1]["prompt"] = [{"role": "user", "content": "Make 16 of 3, 5 and 8."}]
    rows[2]["prompt"] = render_messages("chat", *SOLVABLE[2])
    del rows[3]["prompt"]
    file = write_lines(tmp_path / "a.jsonl", rows)
    out = made(ENV, DataConfig(train_files=(file,), test_size=1), tmp_path / "out")
    assert [row["prompt"] for row in out["train"][1:3]] == [rows[1]["prompt"], rows[2]["prompt"]]
    assert out["train"][3]["prompt"] == render_messages("base", *SOLVABLE[3])


@pytest.mark.parametrize(
    ("env", "row", "words"),
    [
        *((ENV, *row) for row in TABLES["unusable rows"]),
        *((Gsm8k(), *row) for row in TABLES["unusable rows of GSM8K"]),
    ],
)
def test_rows_that_cannot_be_used_name_file_row_value_and_limit(tmp_path, env, row, words):
    file = write_lines(tmp_path / "a.jsonl", [row, row])
    with pytest.raises(ValueError, match=r"a\.jsonl: row 1: ") as caught:
        made(env, DataConfig(train_files=(file,), test_size=1), tmp_path / "out")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "out").exists()


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "a.jsonl").touch()
    pq.write_table(TINYZERO.empty_table(), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(ValueError, match=rf"{name}: holds no rows"):
            made(ENV, DataConfig(train_files=(str(tmp_path / name),)), tmp_path / "out")


def test_the_name_follows_the_content_of_the_files(tmp_path):
    one = write_lines(tmp_path / "one.jsonl", plain(SOLVABLE))
    two = write_lines(tmp_path / "two.jsonl", plain(SOLVABLE))

    def name(*files: str, env: Countdown = ENV, **data: Any) -> str:
        return dataset_name(env, DataConfig.model_validate({"train_files": files, **data}))

    assert name(one) == name(two), "where a file lies does not matter"
    assert name(one) == name(one, seed=5, train_batch_size=8), "nothing is drawn"
    assert name(one) == name(one, env=Countdown(max_number=20, full_score=2.0))
    different = [
        name(one),
        name(one, two),
        name(one, train_size=5),
        name(one, test_size=5),
        name(one, test_files=(two,)),
        name(one, env=Countdown(prompt_template="chat")),
        dataset_name(ENV, DataConfig()),
    ]
    assert name(one, test_files=(two,)) == name(one, test_files=(two,), test_size=5)
    write_lines(tmp_path / "one.jsonl", plain(SOLVABLE[:5]))
    assert len({*different, name(one)}) == len(different) + 1


def test_a_changed_file_is_noticed(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", plain(SOLVABLE))
    data = DataConfig(train_files=(file,), test_size=2, name="mine")
    write_dataset(ENV, data, tmp_path / "mine")
    assert is_ready(ENV, data, tmp_path / "mine")
    write_lines(tmp_path / "a.jsonl", plain(SOLVABLE[:5]))
    with pytest.raises(ValueError, match=r"other settings \(data\.train_files differs\)"):
        is_ready(ENV, data, tmp_path / "mine")


GSM8K_PAIRS = [
    ("Nine twice?", "Two nines.\n#### 18"),
    ("Rent?", "#### 1,800"),
    ("Half?", "#### .5"),
]


def verl_gsm8k(row: int) -> Row:
    question, answer = GSM8K_PAIRS[row]
    truth = answer[-5:].lstrip("# ").replace(",", "")
    extra = {"split": "train", "index": row, "answer": answer, "question": question}
    return verl_gsm8k_row(question, truth, extra_info=extra)


@pytest.mark.parametrize(
    "shape",
    [
        lambda i: dict(zip(("question", "answer"), GSM8K_PAIRS[i], strict=True)),
        verl_gsm8k,
        lambda i: {k: v for k, v in verl_gsm8k(i).items() if k in ("prompt", "reward_model")},
    ],
    ids=["plain", "verl", "verl without extra_info"],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_gsm8k_rows_of_every_shape(tmp_path, kind, shape, caplog):
    file = write_lines(tmp_path / f"a.{kind}", [shape(0), shape(1), shape(2), shape(0)])
    data = DataConfig(train_files=(file,), test_size=2)
    out = made(Gsm8k(source="not/asked"), data, tmp_path / "out")
    assert [row["reward_model"]["ground_truth"] for row in out["train"]] == ["1800"], "test wins"
    assert [row["reward_model"]["ground_truth"] for row in out["test"]] == [".5", "18"]
    assert [row["prompt"] for row in out["test"]] == [verl_gsm8k(i)["prompt"] for i in (2, 0)]
    assert out["train"][0]["extra_info"]["solution"].endswith("00")
    schema = pq.read_schema(tmp_path / "out" / "test.parquet")
    assert schema.remove_metadata().equals(Gsm8k.rows.schema())
    assert read_problems(tmp_path / "out" / "test.parquet")[1].ground_truth == "18"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
