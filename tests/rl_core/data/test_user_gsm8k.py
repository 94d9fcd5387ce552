"""The user's own GSM8K rows, of files and of the hub, in every shape; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rl_core.config.run import DataConfig
from rl_core.data.dataset import read_problems
from rl_core.envs.gsm8k import Gsm8kConfig
from tests.rl_core.data.test_user_files import ENV, Row, facts, made, plain, write_lines
from tests.support.own_data import SOLVABLE, put_in_cache

TABLES = yaml.safe_load(Path(__file__).with_name("user_gsm8k.yaml").read_text())

GSM8K_PAIRS = [
    ("Nine twice?", "Two nines.\n#### 18"),
    ("Rent?", "#### 1,800"),
    ("Half?", "#### .5"),
]


def verl_gsm8k(row: int) -> Row:
    question, answer = GSM8K_PAIRS[row]
    asked = f'{question} Let\'s think step by step and output the final answer after "####".'
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": asked}],
        "ability": "math",
        "reward_model": {
            "style": "rule",
            "ground_truth": answer[-5:].lstrip("# ").replace(",", ""),
        },
        "extra_info": {"split": "train", "index": row, "answer": answer, "question": question},
    }


def without_extra(row: int) -> Row:
    return {k: v for k, v in verl_gsm8k(row).items() if k in ("prompt", "reward_model")}


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda i: dict(zip(("question", "answer"), GSM8K_PAIRS[i], strict=True))),
        pytest.param(verl_gsm8k),
        pytest.param(without_extra),
    ],
    ids=["plain", "verl", "verl without extra_info"],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_gsm8k_rows_of_every_shape(
    tmp_path: Path, kind: str, shape: Callable[[int], Row], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [shape(0), shape(1), shape(2), shape(0)]
    file = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_lines(file, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    data = DataConfig(train_files=(str(file),), test_size=2)
    out = made(Gsm8kConfig(source="not/asked"), data, tmp_path / "out")
    assert [row["reward_model"]["ground_truth"] for row in out["train"]] == ["1800"], "test wins"
    assert [row["reward_model"]["ground_truth"] for row in out["test"]] == [".5", "18"]
    assert [row["prompt"] for row in out["test"]] == [verl_gsm8k(i)["prompt"] for i in (2, 0)]
    assert out["train"][0]["extra_info"]["solution"].endswith("00")
    assert (
        pq.read_schema(tmp_path / "out" / "test.parquet")
        .remove_metadata()
        .equals(Gsm8kConfig.arrow_schema())
    )
    assert read_problems(tmp_path / "out" / "test.parquet")[1].ground_truth == "18"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_hub_data_sets_become_rows_by_their_names(hub_cache: Path, tmp_path: Path) -> None:
    name = "Jiayi-Pan/Countdown-Tasks-3to4"
    put_in_cache(hub_cache, name, {"data/train-00000-of-00001.parquet": plain(SOLVABLE)})
    rows = made(ENV, DataConfig(train_files=(name,), test_size=2), tmp_path / "countdown")
    assert [row["target"] for row in rows["train"] + rows["test"]] == [
        target for _, target in SOLVABLE
    ]
    assert name.replace("/", "--") in facts(tmp_path / "countdown")["files"]["train"][0]["file"]

    pairs = [{"question": question, "answer": answer} for question, answer in GSM8K_PAIRS]
    put_in_cache(
        hub_cache,
        "openai/gsm8k",
        {
            "main/train-00000-of-00001.parquet": pairs[:2],
            "main/test-00000-of-00001.parquet": pairs[2:],
        },
    )
    both = DataConfig(train_files=("openai/gsm8k",), test_files=("openai/gsm8k",))
    by_source = made(Gsm8kConfig(), DataConfig(), tmp_path / "source")
    assert made(Gsm8kConfig(), both, tmp_path / "files") == by_source


@pytest.mark.parametrize(
    ("row", "words"),
    TABLES["unusable rows"],
)
def test_gsm8k_rows_that_cannot_be_used(tmp_path: Path, row: Row, words: str) -> None:
    file = write_lines(tmp_path / "a.jsonl", [row, row])
    with pytest.raises(ValueError, match=r"a\.jsonl: row 1: ") as caught:
        made(Gsm8kConfig(), DataConfig(train_files=(file,), test_size=1), tmp_path / "out")
    assert words in str(caught.value)
