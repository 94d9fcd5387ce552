"""Every check with a table that passes it and one that fails it, and the lengths of prompts."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.dataset import DatasetError, write_dataset
from rl_core.envs.countdown import Countdown
from rl_core.envs.custom import Custom
from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.number_questions import NumberQuestions
from rl_core.envs.reasoning_gym import ReasoningGym
from tasks.queries.saved_questions import SQL_FOLDER
from tasks.validate import (
    ValidationFailed,
    check_dataset,
    check_files,
    validate_dataset,
    validate_task,
)
from tests.support.broken_rows import BREAKS, Break, Rows

COUNTDOWN = RunConfig(
    env=Countdown(max_operands=3, max_number=20),
    data=DataConfig(train_size=256, test_size=12),
)
GCD = RunConfig(env=ReasoningGym(task=("gcd",)), data=DataConfig(train_size=256, test_size=3))
NUMBERS = RunConfig(env=NumberQuestions(), data=DataConfig(train_size=300, test_size=9))
GSM8K_QUESTIONS = {"train": ["Nine twice?", "Rent?"], "test": ["Half?"]}


def write_word_problems(folder: Path) -> None:
    for split, questions in GSM8K_QUESTIONS.items():
        records = [{"question": q, "answer": f"So.\n#### {len(q)},000"} for q in questions]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, records)))


def own_questions(folder: Path) -> DataConfig:
    records = [{"question": f"Is it {c}?", "answer": c, "extra_info": {"n": 1}} for c in "abcdef"]
    (folder / "letters.jsonl").write_text("\n".join(map(json.dumps, records)))
    return DataConfig(train_files=(str(folder / "letters.jsonl"),), test_size=2)


def both_splits(folder: Path) -> dict[str, pa.Table]:
    return {
        split: pq.read_table(folder / f"{split}.parquet").replace_schema_metadata()
        for split in ("train", "test")
    }


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, pa.Table]]:
    """Both splits of a sound data set, per env."""
    folder = tmp_path_factory.mktemp("sound")
    write_word_problems(folder)
    write_dataset(COUNTDOWN.env, COUNTDOWN.data, folder / "countdown")
    files = {f"{split}_files": f"{folder}/{split}.jsonl" for split in GSM8K_QUESTIONS}
    write_dataset(Gsm8k(), DataConfig.model_validate(files), folder / "gsm8k")
    write_dataset(Custom(), own_questions(folder), folder / "custom")
    write_dataset(NUMBERS.env, NUMBERS.data, folder / "number_questions")
    envs = ("countdown", "gsm8k", "custom", "number_questions")
    return {env: both_splits(folder / env) for env in envs}


def ten_tokens(prompts: Sequence[object]) -> list[int]:
    return [10] * len(prompts)


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
        checks = check_dataset(config, folder, ten_tokens).checks
    except ValidationFailed as failed:
        checks = failed.validation.checks
    return {check["check"]: check["rows"] for check in checks if check["status"] == "failed"}


CONFIGS = {
    "countdown": COUNTDOWN,
    "gsm8k": RunConfig(env=Gsm8k()),
    "custom": RunConfig(env=Custom()),
    "number_questions": NUMBERS,
    "reasoning_gym": GCD,
}


@pytest.mark.parametrize(
    ("env", "break_rows", "expected"),
    [*((env, None, {}) for env in CONFIGS), *BREAKS],
    ids=lambda value: getattr(value, "__name__", "sound" if value is None else str(value)[:20]),
)
def test_each_check_finds_the_rows_that_break_it(sound, tmp_path, env, break_rows, expected):
    config = CONFIGS[env]
    if env == "custom":
        config = config.model_copy(update={"data": own_questions(tmp_path)})
    if env == "reasoning_gym":
        pytest.importorskip("reasoning_gym", reason="make env leaves it out without a C compiler")
        write_dataset(GCD.env, GCD.data, tmp_path)
        sound = {env: both_splits(tmp_path)}
    assert failing(config, sound[env], tmp_path, break_rows) == expected


def test_a_function_may_judge_any_truth(sound, tmp_path):
    def objects(train: Rows, _: Rows) -> None:
        train[0]["reward_model"] = {"style": "json", "ground_truth": '["Paris", "Lyon"]'}

    for reward, expected in ((None, {"custom_ground_truth": 1}), ("mine:score", {})):
        config = RunConfig(env=Custom(reward=reward), data=own_questions(tmp_path))
        assert failing(config, sound["custom"], tmp_path, objects) == expected


def changed(column: str, values: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    """A change of a column's values or type."""
    return lambda table: table.set_column(
        table.column_names.index(column), column, values(table[column])
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.drop_columns(["ability"]), id="missing"),
        pytest.param(lambda table: table.append_column("x", table["target"]), id="unexpected"),
        pytest.param(lambda table: table.select(table.column_names[::-1]), id="other order"),
        # 3.0 is an integer to a reader, but not to verl.
        pytest.param(changed("target", lambda t: t.cast(pa.float64())), id="whole floats"),
        pytest.param(changed("target", lambda t: pa.array([float("nan")] * len(t))), id="nan"),
        pytest.param(changed("target", lambda t: t.cast(pa.string())), id="text"),
        pytest.param(changed("target", lambda t: t.cast(pa.int32())), id="narrow"),
        pytest.param(changed("nums", lambda n: n.cast(pa.list_(pa.float64()))), id="float numbers"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_columns_are_checked_first_and_alone(sound, tmp_path, change, split):
    tables = sound["countdown"] | {split: change(sound["countdown"][split])}
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    assert set(failed_checks(COUNTDOWN, tmp_path)) == {"countdown_columns"}


def test_gsm8k_columns_are_checked(sound, tmp_path):
    for split, table in sound["countdown"].items():
        pq.write_table(table, tmp_path / f"{split}.parquet")
    assert set(failed_checks(RunConfig(env=Gsm8k()), tmp_path)) == {"text_columns"}
    own = RunConfig(env=Custom(), data=own_questions(tmp_path))
    assert set(failed_checks(own, tmp_path)) == {"text_columns"}


def test_every_check_has_a_table_that_fails_it():
    files = {path.stem for path in (SQL_FOLDER / "checks").rglob("*.sql")}
    seen = set[str]().union(*(names for _, _, names in BREAKS))
    assert files == seen | {"countdown_columns", "text_columns"}
    run = {path.stem for config in CONFIGS.values() for path in check_files(config.env)}
    assert run == files, "no file is left out"


def test_the_error_shows_check_count_and_first_rows(sound, tmp_path):
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
    assert (str(again), again.validation) == (message, caught.value.validation)


def test_prompt_lengths_are_measured_against_the_limit(sound, tmp_path):
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    lengths = iter(list(range(1, 257)) + [7] * 12)

    def next_lengths(prompts: Sequence[object]) -> list[int]:
        return [next(lengths) for _ in prompts]

    validation = check_dataset(COUNTDOWN, tmp_path, next_lengths)
    train, test = validation.checks[-2:]
    assert train["check"] == "prompt_tokens_train"
    assert "=256 tokens (min 1, mean 128.5, p99 253, max 256)" in train["proves"]
    assert "(min 7, mean 7.0, p99 7, max 7)" in test["proves"]
    assert "1 to 256 tokens, which is the smallest limit" in validation.lengths.verdict

    lengths = iter(list(range(3, 259)) + [7] * 12)
    with pytest.raises(ValidationFailed) as caught:
        check_dataset(COUNTDOWN, tmp_path, next_lengths)
    assert str(caught.value) == (
        f"{tmp_path}: 2 of 268 prompts (0.7%) are rejected by data.max_prompt_length=256: prompts "
        "take 3 to 258 tokens; the smallest limit that keeps all is 258; in train: "
        '{"index": 254, "prompt_tokens": 257}; {"index": 255, "prompt_tokens": 258}'
    )
    train = caught.value.validation.checks[-2]
    assert train["rows"] == 2
    assert '{"index": 254, "prompt_tokens": 257}' in train["first rows"]


@pytest.mark.parametrize("template", ["base", "qwen-instruct", "chat"])
def test_the_real_tokenizer_measures(tmp_path, tiny_model_path, template):
    """The tiny model's tokenizer has one token per byte: a prompt is as long as its text."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model_path, model)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    env = Countdown(max_operands=3, max_number=20, prompt_template=template)
    data = DataConfig(train_size=2_400, test_size=12, max_prompt_length=128)
    config = RunConfig(env=env, data=data)
    write_dataset(env, data, tmp_path / "data")
    texts = [
        "".join(message["content"] for message in prompt)
        for split in ("train", "test")
        for prompt in pq.read_table(tmp_path / "data" / f"{split}.parquet")["prompt"].to_pylist()
    ]
    low, high = min(map(len, texts)), max(map(len, texts))
    with pytest.raises(ValidationFailed) as caught:
        validate_dataset(config, tmp_path / "data", model)
    assert str(caught.value).endswith(
        "all 2,412 prompts are rejected by data.max_prompt_length=128: they take "
        f"{low} to {high} tokens; the smallest limit that keeps all is {high}"
    )
    room = config.model_copy(update={"data": data.model_copy(update={"max_prompt_length": high})})
    validation = validate_dataset(room, tmp_path / "data", model)
    assert {check["status"] for check in validation.checks} == {"ok"}
    of_templates = 4 if template == "chat" else 0
    assert len(validation.checks) == len(check_files(env)) + of_templates + 2


def test_a_truncated_file_is_a_data_set_error(sound, tmp_path):
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    path = tmp_path / "test.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match=r"test\.parquet: not a readable parquet file"):
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)


def test_hostile_texts_do_not_reach_the_terminal(sound, tmp_path):
    hostile = '\x1b]0;pwned\x07\x1b[2J\x9b31m\'; drop table train; --\n"quoted"\u202e'

    def inject(train: Rows, _: Rows) -> None:
        train[0]["data_source"] = hostile
        train[1]["extra_info"]["split"] = hostile
        train[2]["prompt"][0]["content"] = hostile
        for row in train[3:9]:  # enough to be a shape of their own
            row["extra_info"]["solution"] = hostile

    expected = {"labels": 1, "split_label": 1, "countdown_prompt": 1}
    broken = failing(COUNTDOWN, sound["countdown"], tmp_path, inject)
    assert broken == expected | {"countdown_solution": 6}
    with pytest.raises(ValidationFailed) as caught:
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)
    assert str(caught.value).isprintable()
    assert all(check["first rows"].isprintable() for check in caught.value.validation.checks)


def test_column_names_do_not_reach_the_terminal(sound, tmp_path):
    name = "x\x1b[2J\n\"'; drop table train"
    for split, table in sound["countdown"].items():
        pq.write_table(table.append_column(name, table["target"]), tmp_path / f"{split}.parquet")
    with pytest.raises(ValidationFailed, match="countdown_columns failed on 2 rows") as caught:
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)
    assert str(caught.value).isprintable()


def test_a_column_type_without_sql_names_the_file(sound, tmp_path):
    for split, table in sound["countdown"].items():
        halves = table.append_column("x", pa.array([1.5] * table.num_rows, pa.float16()))
        pq.write_table(halves, tmp_path / f"{split}.parquet")
    with pytest.raises(DatasetError, match=r"train\.parquet: train: a column's type is unknown"):
        check_dataset(COUNTDOWN, tmp_path, ten_tokens)


def test_other_writers_types_of_the_same_values_are_checked_too(sound, tmp_path):
    for split, table in sound["countdown"].items():
        wide = changed("nums", lambda nums: nums.cast(pa.large_list(pa.int64())))(table)
        coded = changed("ability", lambda words: words.combine_chunks().dictionary_encode())(wide)
        pq.write_table(coded, tmp_path / f"{split}.parquet")
    assert failed_checks(COUNTDOWN, tmp_path) == {}


def test_the_tables_are_shown_even_of_a_failure(sound, tmp_path, tiny_model_path, monkeypatch):
    failing(COUNTDOWN, sound["countdown"], tmp_path, None)
    shown: dict[str, tuple[list[dict[str, Any]], str]] = {}
    monkeypatch.setattr(
        "tasks.validate.create_table_artifact",
        lambda rows, *, key, description: shown.update({key: (rows, description)}),
    )
    with pytest.raises(ValidationFailed, match="all 268 prompts are rejected"):
        validate_task.fn(COUNTDOWN, tmp_path, tiny_model_path)
    checks, said = shown["validation"]
    assert [row["status"] for row in checks[-2:]] == ["failed", "failed"]
    assert {row["check"] for row in checks} >= {"countdown_unique", "index_gapless"}
    failed = "checks failed: prompt_tokens_train, prompt_tokens_test."
    assert said.startswith(f"2 of {len(checks)} {failed}")
    assert "all 268 prompts are rejected" in shown["prompt-limits"][1]
