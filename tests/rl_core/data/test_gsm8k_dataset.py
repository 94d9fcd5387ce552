"""GSM8K's data set: from a local folder, or toy problems written here."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import (
    dataset_name,
    is_ready,
    read_problems,
    read_solved,
    write_dataset,
)
from rl_core.envs.gsm8k import Gsm8kConfig, extract_truth

GSM8K_ROWS = {
    "train": [("How many are 9 * 2?", "Nine times two.\n#### 18"), ("Rent?", "A lot.\n#### 1,800")],
    "test": [("Half of one?", "Cut it.\n#### 0.5")],
}


def write_source(folder: Path, kind: str) -> Gsm8kConfig:
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in GSM8K_ROWS.items():
        records = [{"question": question, "answer": answer} for question, answer in pairs]
        if kind == "jsonl":
            text = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{split}.jsonl").write_text(text)
        else:
            (folder / "main").mkdir(exist_ok=True)
            name = folder / "main" / f"{split}-00000-of-00001.parquet"
            pq.write_table(pa.Table.from_pylist(records), name)
    return Gsm8kConfig(source=str(folder))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_gsm8k_from_a_local_folder(tmp_path: Path, kind: str) -> None:
    env = write_source(tmp_path / "source", kind)
    write_dataset(env, DataConfig(), tmp_path / "out")
    train, test = (read_problems(tmp_path / "out" / f"{s}.parquet") for s in ("train", "test"))
    assert [problem.ground_truth for problem in train + test] == ["18", "1800", "0.5"]
    assert [problem.index for problem in train + test] == [0, 1, 0]
    assert train[1].messages[0]["content"].startswith("Rent? Let's think step by step")
    assert train[0].data_source == "openai/gsm8k"
    row = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()[1]
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert row["extra_info"]["solution"] == "A lot.\n#### 1,800"


def test_gsm8k_notices_a_changed_source(tmp_path: Path) -> None:
    env = write_source(tmp_path / "source", "jsonl")
    write_dataset(env, DataConfig(), tmp_path / "out")
    assert is_ready(env, DataConfig(), tmp_path / "out")
    with (tmp_path / "source" / "test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "One?", "answer": "#### 1"}) + "\n")
    with pytest.raises(ValueError, match=r"another copy of env\.source"):
        is_ready(env, DataConfig(), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json", r"train\.jsonl: line 1 is not JSON"),
        ('["a list"]', "every line must be a JSON object"),
        ('{"question": "One?"}', "row 1: it has neither `answer` nor"),
        ('{"question": "One?", "answer": "one"}', "must end with '#### <number>'"),
    ],
)
def test_gsm8k_sources_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    env = write_source(tmp_path / "source", "jsonl")
    (tmp_path / "source" / "train.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        write_dataset(env, DataConfig(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gsm8k_without_source_or_hub_says_what_to_give(tmp_path: Path) -> None:
    for source, message in (
        (str(tmp_path / "nowhere"), "is not a folder"),
        (str(tmp_path), r"no train\.jsonl or train\.parquet"),
        ("nobody/no-such-data-set", "the hub did not give it"),  # the suite runs offline
    ):
        with pytest.raises(ValueError, match=message):
            write_dataset(Gsm8kConfig(source=source), DataConfig(), tmp_path / "out")


def test_toy_word_problems_are_as_many_as_asked_for_and_shared_by_no_split(tmp_path: Path) -> None:
    env = Gsm8kConfig(source="toy", prompt_template="think")
    data = DataConfig(train_size=300, test_size=40, seed=5)
    for folder in ("out", "again"):
        write_dataset(env, data, tmp_path / folder)
    paths = [tmp_path / "out" / f"{split}.parquet" for split in ("train", "test")]
    train, test = (read_problems(path) for path in paths)
    assert (len(train), len(test)) == (300, 40)
    prompts = {problem.messages[0]["content"] for problem in train + test}
    assert len(prompts) == 340
    assert {problem.data_source for problem in train} == {"openai/gsm8k"}
    for path, problems in zip(paths, (train, test), strict=True):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
        solved = read_solved(path)
        assert [problem for problem, _ in solved] == problems
        truths = [extract_truth(solution) for _, solution in solved]
        assert truths == [problem.ground_truth for problem in problems]
    assert is_ready(env, data, tmp_path / "out")
    more = data.model_copy(update={"train_size": 301})
    with pytest.raises(ValueError, match=r"data\.train_size differs"):
        is_ready(env, more, tmp_path / "out")
    names = {
        dataset_name(env, data),
        dataset_name(env, more),
        dataset_name(env, data.model_copy(update={"seed": 6})),
        dataset_name(Gsm8kConfig(source="toy"), data),
    }
    assert len(names) == 4
    assert dataset_name(Gsm8kConfig(), data) == dataset_name(Gsm8kConfig(), more)
