"""Data sets on disk: the schema, the same bytes again, reuse only of what was asked for, damage."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import (
    GENERATOR_VERSION,
    DatasetError,
    content_hash,
    dataset_name,
    is_ready,
    read_problems,
    read_verified,
    write_dataset,
)
from rl_core.envs.countdown import Countdown
from rl_core.envs.countdown.puzzles import COUNTDOWN_DATASET
from rl_core.envs.countdown.templates import render_messages
from tests.support.own_data import SOLVABLE, TINYZERO, write_tinyzero
from tests.support.programs import python

ENV = Countdown(max_operands=3, max_number=20)
DATA = DataConfig(train_size=60, test_size=20, seed=5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small data set of `ENV` and `DATA`."""
    write_dataset(ENV, DATA, tmp_path / "data" / "small")
    return tmp_path / "data" / "small"


def test_every_row_has_what_verl_and_tinyzero_take(folder):
    """verl's dataset takes the conversation and the index, its reward manager the rest."""
    for split in ("train", "test"):
        rows = pq.read_table(folder / f"{split}.parquet").to_pylist()
        problems = read_problems(folder / f"{split}.parquet")
        for index, (row, problem) in enumerate(zip(rows, problems, strict=True)):
            assert problem.index == row["extra_info"]["index"] == index
            assert list(problem.messages) == row["prompt"]
            assert problem.ground_truth == row["reward_model"]["ground_truth"]
            assert problem.num_solutions == row["extra_info"]["num_solutions"] >= 1
            assert all(set(message) == {"role", "content"} for message in row["prompt"])
            assert (row["data_source"], row["reward_model"]["style"]) == ("countdown", "rule")
            assert set(row["reward_model"]["ground_truth"]) == {"target", "numbers"}
            assert row["extra_info"]["split"] == split
    ours = pq.read_schema(folder / "train.parquet")
    assert ours.remove_metadata().equals(COUNTDOWN_DATASET)
    assert set(ours.names) == set(TINYZERO.names)
    for name in ("nums", "target", "data_source", "ability"):
        assert ours.field(name).type.equals(TINYZERO.field(name).type), name
    labels, theirs = (
        {field.name for field in schema.field("extra_info").type} for schema in (ours, TINYZERO)
    )
    assert labels - theirs == {"num_solutions", "solution"}


def test_metadata_says_what_made_the_file(folder):
    metadata = pq.read_metadata(folder / "test.parquet").metadata
    made_by = json.loads(metadata[b"countdown_train.generator"])
    assert made_by["env"]["max_number"] == 20
    assert "format_score" not in made_by["env"], "scores do not change the rows"
    assert (made_by["train_size"], made_by["test_size"], made_by["seed"]) == (60, 20, 5)
    assert metadata[b"countdown_train.seed"] == b"5"
    assert metadata[b"countdown_train.version"] == b"1"
    assert (
        metadata[b"countdown_train.content_sha256"]
        == content_hash(pq.read_table(folder / "test.parquet")).encode()
    )


@pytest.mark.parametrize(
    ("env", "data", "golden"),
    [
        (ENV, DATA, "abad74527071a4b2c806c86e289e678b14177823babfe60c409cce5b0e8254b3"),
        (
            Countdown(
                min_operands=2, max_number=6, min_target=1, max_target=300, prompt_template="chat"
            ),
            DataConfig(train_size=4_000, test_size=100, seed=5),
            "6c5aa3ec12b29a8479167836a6138d5d1b2cd4e03e87c9fb639a649dc1ef9133",
        ),
        (
            Countdown(max_operands=3, max_number=20, min_target=1, max_target=204),
            DataConfig(train_size=20_000, test_size=512),
            "90b5e4d0b035b778d1788f327bad7938e551ed4e7838ff118e3e76fd54d16616",
        ),
    ],
    ids=["small", "equal numbers", "many targets"],
)
def test_rows_are_those_of_version_1(env, data, golden, tmp_path):
    """Hashes of rows that were made one at a time, each solution written by itself."""
    assert GENERATOR_VERSION == 1
    write_dataset(env, data, tmp_path / "data")
    assert content_hash(pq.read_table(tmp_path / "data" / "train.parquet")) == golden


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_cores(tmp_path):
    """Two row groups and two chunks of rows, so that threads have something to share."""
    code = (
        "import sys, pathlib, pyarrow\n"
        "from rl_core.config.run import DataConfig\n"
        "from rl_core.data.dataset import write_dataset\n"
        "from rl_core.envs.countdown import Countdown\n"
        "threads = int(sys.argv[2]); pyarrow.set_cpu_count(threads)\n"
        "pyarrow.set_io_thread_count(threads)\n"
        "write_dataset(Countdown(), DataConfig(train_size=70_000, test_size=20, seed=5),"
        " pathlib.Path(sys.argv[1]))"
    )
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "PYTHONHASHSEED")
    made: list[dict[str, bytes]] = []
    for threads in ("1", "2", "7"):
        folder = tmp_path / threads
        done = python(code, folder, threads, more=dict.fromkeys(variables, threads))
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert pq.read_metadata(tmp_path / "1" / "train.parquet").num_row_groups == 2
    assert made[0] == made[1] == made[2]


def test_name_follows_what_the_rows_depend_on():
    name = dataset_name(ENV, DATA)
    assert name.startswith("countdown-")
    assert len(name) == len("countdown-") + 8
    assert dataset_name(ENV.model_copy(update={"format_score": 0.3}), DATA) == name
    assert dataset_name(ENV, DATA.model_copy(update={"train_batch_size": 8})) == name
    for other in ({"seed": 6}, {"train_size": 61}, {"test_size": 21}):
        assert dataset_name(ENV, DATA.model_copy(update=other)) != name
    assert dataset_name(ENV.model_copy(update={"max_number": 21}), DATA) != name
    assert dataset_name(ENV, DATA.model_copy(update={"name": "mine"})) == "mine"


def test_what_is_there_is_ready_only_for_its_own_settings(folder):
    assert is_ready(ENV, DATA, folder)
    assert is_ready(ENV.model_copy(update={"full_score": 2.0}), DATA, folder)
    assert not is_ready(ENV, DATA, folder.with_name("absent"))
    with pytest.raises(ValueError, match=r"other settings \(data.seed differs\).*data.name"):
        is_ready(ENV, DATA.model_copy(update={"seed": 6}), folder)
    with pytest.raises(ValueError, match=r"\(env.max_number differs\)"):
        is_ready(ENV.model_copy(update={"max_number": 21}), DATA, folder)


def test_a_deleted_file_is_noticed_and_made_again(folder):
    before = (folder / "test.parquet").read_bytes()
    (folder / "test.parquet").unlink()
    assert not is_ready(ENV, DATA, folder)
    write_dataset(ENV, DATA, folder)
    assert (folder / "test.parquet").read_bytes() == before


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncation_is_one_clear_line(folder, share):
    path = folder / "train.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    for read in (read_problems, read_verified, lambda _: is_ready(ENV, DATA, folder)):
        with pytest.raises(DatasetError, match=r"train\.parquet: not a readable") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_changed_row_is_noticed(folder):
    path = folder / "train.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[3]["extra_info"]["solution"] = "1 + 1"
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    with pytest.raises(DatasetError, match="not those that were written"):
        read_verified(path)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    whole = pq.write_table

    def disk_full(table: Any, path: Path, **options: Any) -> None:
        whole(table, path, **options)
        if path.name == "test.parquet":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_dataset(ENV, DATA, tmp_path / "data" / "small")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_folder_with_something_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis\.tex.*data\.name"):
        write_dataset(ENV, DATA, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_tinyzero_files_are_read(tmp_path):
    file = write_tinyzero(tmp_path / "tinyzero.parquet", SOLVABLE)
    problem = read_problems(file)[1]
    assert (problem.index, problem.num_solutions) == (1, 0)
    assert problem.ground_truth == {"target": 16, "numbers": [3, 5, 8]}
    assert problem.messages == tuple(render_messages("base", [3, 5, 8], 16))
    read_verified(file)

    pq.write_table(pq.read_table(file).drop_columns(["extra_info"]), file)
    assert [problem.index for problem in read_problems(file)] == list(range(len(SOLVABLE)))


def test_files_of_another_kind_are_refused_in_words(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match="no column 'data_source'"):
        read_problems(tmp_path / "a.parquet")
    odd = pa.table({"data_source": ["x"], "prompt": ["text"], "reward_model": [1]})
    pq.write_table(odd, tmp_path / "odd.parquet")
    with pytest.raises(DatasetError, match="row 0 is not shaped like a problem"):
        read_problems(tmp_path / "odd.parquet")


def test_content_hash_ignores_chunks_and_sees_every_value():
    rows: list[dict[str, Any]] = [
        {"a": [1, 2], "b": {"c": "x", "d": None}},
        {"a": [], "b": {"c": "yz", "d": 4}},
    ]
    text_and_number = pa.struct([("c", pa.string()), ("d", pa.int64())])
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", text_and_number)])

    def digest(*parts: list[dict[str, Any]]) -> str:
        tables = [pa.Table.from_pylist(part, schema=schema) for part in parts]
        return content_hash(pa.concat_tables(tables))

    assert digest(rows) == digest(rows[:1], rows[1:])
    changes: list[list[dict[str, Any]]] = [
        [{"a": [1], "b": rows[0]["b"]}, {"a": [2], "b": rows[1]["b"]}],
        [{"a": [1, 2], "b": {"c": "xy", "d": None}}, {"a": [], "b": {"c": "z", "d": 4}}],
        [{"a": [1, 2], "b": {"c": "x", "d": 0}}, rows[1]],
        [{"a": [1, 2], "b": None}, rows[1]],
        [rows[0], {"a": None, "b": rows[1]["b"]}],
        [rows[0]],
        rows[::-1],
    ]
    assert len({digest(rows), *(digest(changed) for changed in changes)}) == len(changes) + 1
