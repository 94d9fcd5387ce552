"""Our files as verl reads them: what its dataset and reward manager take from a row, restated.

verl is not installed here. Its dataset (verl 0.3, `utils/dataset/rl_dataset.py`) reads parquet,
takes the column `prompt` as a conversation for the chat template, and hands on every other column;
its reward manager scores by `data_source` and `reward_model["ground_truth"]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import write_dataset
from rl_core.envs.countdown import CountdownConfig, score_response
from rl_core.envs.gsm8k import Gsm8kConfig
from tests.support.own_data import TINYZERO

COUNTDOWN = CountdownConfig(max_operands=3, max_number=20)
DATA = DataConfig(train_size=20, test_size=5)
CHAT_TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


def rows_as_verl_reads(file: Path) -> list[dict[str, Any]]:
    return pq.read_table(file).to_pylist()


def row_dict(row: dict[str, Any]) -> dict[str, Any]:
    """verl's row: the conversation taken out, the index from `extra_info`, all else handed on."""
    row = dict(row)
    messages = row.pop("prompt")
    assert isinstance(messages, list)
    for message in messages:
        assert set(message) == {"role", "content"}
        assert isinstance(message["content"], str)
    index = row.get("extra_info", {}).get("index", 0)
    return {**row, "index": index, "raw_prompt": messages}


@pytest.fixture(params=["countdown", "gsm8k"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "countdown":
        write_dataset(COUNTDOWN, DATA, tmp_path / "out")
    else:
        for split in ("train", "test"):
            line = '{"question": "Nine twice?", "answer": "So.\\n#### 18"}\n'
            (tmp_path / f"{split}.jsonl").write_text(line)
        write_dataset(Gsm8kConfig(source=str(tmp_path)), DATA, tmp_path / "out")
    return tmp_path / "out"


def test_every_row_has_what_verl_takes(folder: Path) -> None:
    for split in ("train", "test"):
        rows = [row_dict(row) for row in rows_as_verl_reads(folder / f"{split}.parquet")]
        assert [row["index"] for row in rows] == list(range(len(rows)))
        for row in rows:
            assert row["data_source"] in ("countdown", "openai/gsm8k")
            assert row["reward_model"]["style"] == "rule"
            assert row["reward_model"]["ground_truth"]
            assert row["extra_info"]["split"] == split


def test_the_conversation_goes_through_a_chat_template(folder: Path, tiny_model_path: Path) -> None:
    from rl_core.data.prompts import load_tokenizer

    tokenizer = load_tokenizer(str(tiny_model_path))
    (row, *_) = rows_as_verl_reads(folder / "train.parquet")
    text = tokenizer.apply_chat_template(
        row["prompt"], chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    assert text == f"<user>{row['prompt'][0]['content']}<assistant>"


def test_tinyzeros_scorer_gets_its_target_and_numbers(tmp_path: Path) -> None:
    write_dataset(COUNTDOWN, DATA, tmp_path / "out")
    for row in rows_as_verl_reads(tmp_path / "out" / "train.parquet"):
        truth = row["reward_model"]["ground_truth"]
        assert set(truth) == {"target", "numbers"}
        answer = f"<answer>{row['extra_info']['solution']}</answer>"
        assert score_response(answer, truth["numbers"], truth["target"]).verdict == "correct"


def test_our_columns_are_tinyzeros_and_two_more_labels(tmp_path: Path) -> None:
    write_dataset(COUNTDOWN, DATA, tmp_path / "out")
    ours = pq.read_schema(tmp_path / "out" / "train.parquet")
    assert set(ours.names) == set(TINYZERO.names)
    for name in ("nums", "target", "data_source", "ability"):
        assert ours.field(name).type.equals(TINYZERO.field(name).type), name
    labels = {field.name for field in ours.field("extra_info").type}
    assert labels - {field.name for field in TINYZERO.field("extra_info").type} == {
        "num_solutions",
        "solution",
    }
