"""GSM8K's data set: from the hub's cache, or toy problems written here."""

import json

import duckdb
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import dataset_name, is_ready, read_problems, read_solved, write_dataset
from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.numbers import extract_truth
from tests.support.own_data import put_in_cache
from tests.support.seeded_faults import ROOT

NAME = "openai/gsm8k"
GSM8K_ROWS = {
    "train": [("How many are 9 * 2?", "Nine times two.\n#### 18"), ("Rent?", "A lot.\n#### 1,800")],
    "test": [("Half of one?", "Cut it.\n#### 0.5")],
}


def files_of(config: str, splits: tuple[str, ...]) -> dict[str, list[dict[str, str]]]:
    """The records of each file of the hub, by its path in the repository."""
    return {
        f"{config}/{split}-00000-of-00001.parquet": [
            {"question": question, "answer": answer} for question, answer in GSM8K_ROWS[split]
        ]
        for split in splits
    }


def test_the_default_source_is_read_from_the_cache(hub_cache, tmp_path):
    put_in_cache(hub_cache, NAME, files_of("main", ("train", "test")))
    write_dataset(Gsm8k(), DataConfig(), tmp_path / "out")
    train, test = (read_problems(tmp_path / "out" / f"{s}.parquet") for s in ("train", "test"))
    assert [problem.ground_truth for problem in train + test] == ["18", "1800", "0.5"]
    assert [problem.index for problem in train + test] == [0, 1, 0]
    assert train[1].messages[0]["content"].startswith("Rent? Let's think step by step")
    assert train[0].data_source == NAME
    rows = pq.read_table(tmp_path / "out" / "train.parquet")
    assert rows.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert rows["extra_info"][1].as_py()["solution"] == "A lot.\n#### 1,800"
    assert is_ready(Gsm8k(), DataConfig(), tmp_path / "out")
    named = DataConfig(train_files=(NAME,), test_files=(NAME,))
    write_dataset(Gsm8k(), named, tmp_path / "named")
    assert pq.read_table(tmp_path / "named" / "train.parquet").equals(rows)


@pytest.mark.parametrize(
    ("config", "splits"),
    [("main", ("train",)), ("socratic", ("train", "test"))],
    ids=["one split", "another config"],
)
def test_a_cache_that_holds_something_else_is_not_enough(hub_cache, tmp_path, config, splits):
    put_in_cache(hub_cache, NAME, files_of(config, splits))
    with pytest.raises(ValueError, match="lacks files of the split"):  # offline
        write_dataset(Gsm8k(), DataConfig(), tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/a/folder", r"no data set of the hub.*data\.train_files=FILE data\.test_files=FILE"),
        ("nobody/no-such-data-set", "the hub did not give it"),  # the suite runs offline
    ],
)
def test_gsm8k_without_the_hub_says_what_to_give(tmp_path, source, said):
    with pytest.raises(ValueError, match=said):
        write_dataset(Gsm8k(source=source), DataConfig(), tmp_path / "out")


TRUTHS = {
    **{"#### \u22125": "-5", "#### minus 5": "-5", "#### -€1,800.50": "-1800.50", "#### .5": ".5"},
    **{"#### **18**": "18", "#### \\boxed{18}": "18", "#### 18 dollars": "18", "18 eggs": "18"},
    **{"#### 1\u202f800": "1800", "#### $1{,}800$.": "1800", "#### \uff11\uff18": "18"},
    **{"\u22125": "-5", "#### Rs. 18": "18", "#### USD -18.0": "-18.0", "#### 18 m^2": "18"},
}


def test_truths_are_numbers_as_people_write_them_and_the_check_agrees(tmp_path):
    rows = [{"question": f"Row {i}?", "answer": answer} for i, answer in enumerate(TRUTHS)]
    (file := tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = DataConfig(train_files=(str(file),), test_size=2)
    write_dataset(Gsm8k(), data, tmp_path / "out")
    check = (ROOT / "sql" / "checks" / "gsm8k_ground_truth.sql").read_text()
    read = {}
    for split in ("train", "test"):
        path = tmp_path / "out" / f"{split}.parquet"
        problems = duckdb.read_parquet(str(path)).select("extra_info.split, extra_info.index, *")
        assert duckdb.query(check).fetchall() == []
        assert len(problems) > 0
        read |= {
            problem.messages[0]["content"]: problem.ground_truth for problem in read_problems(path)
        }
    truths = {text.split("?")[0]: truth for text, truth in read.items()}
    assert truths == {f"Row {i}": truth for i, truth in enumerate(TRUTHS.values())}


@pytest.mark.parametrize("answer", ["#### 18k", "#### 2 dozen", "#### 1/2", "#### 18 or 19"])
def test_a_truth_that_is_another_number_is_refused(answer):
    with pytest.raises(ValueError, match="must end with '#### <number>'"):
        Gsm8k.rows.read(Gsm8k(), {"question": "How many?", "answer": answer})


def test_toy_word_problems_are_as_many_as_asked_for_and_shared_by_no_split(tmp_path):
    env = Gsm8k(source="toy", prompt_template="think")
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
    assert dataset_name(Gsm8k(), data) == dataset_name(Gsm8k(), more)
