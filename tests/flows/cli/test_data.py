import json
from pathlib import Path

import pytest
import yaml

from flows.settings.compose import compose
from rl_core.data.dataset import dataset_folder, write_dataset
from rl_core.runs.run_folder import RunFolder

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage root with the data set of a few settings, and of a run that has them."""
    folder = tmp_path_factory.mktemp("data")
    config = compose([*settings(folder), "run_id=mine"])
    write_dataset(config.env, config.data, dataset_folder(config))
    RunFolder.create(config).update(data=str(dataset_folder(config)), model=None)
    return folder


def settings(root: Path) -> list[str]:
    return [f"storage.root={root}", "data.train_size=256", "data.test_size=16"]


@pytest.fixture
def answer(cli):
    return lambda *words: cli("data", *words, root=None).out


def test_head_shows_the_first_rows_of_the_settings_own_data(answer, root):
    printed = answer("head", "2", *settings(root))
    assert "train.parquet: 256 rows, " in printed.splitlines()[0]
    assert printed.endswith("(2 rows)\n")
    assert "reward_model  {'style': 'rule', 'ground_truth': {'target': " in printed
    assert answer("head", *settings(root)).endswith("(5 rows)\n")


def test_head_takes_a_split_a_run_and_a_format(answer, root):
    words = ["head", "3", f"storage.root={root}", "run_id=mine", "split=test", "--format", "json"]
    rows = json.loads(answer(*words))
    assert [row["extra_info"]["split"] for row in rows] == ["test"] * 3
    assert rows[0]["prompt"][0]["role"] == "user"


def test_columns_and_lengths_of_any_file(answer, root):
    folder = dataset_folder(compose(settings(root)))
    printed = answer("columns", str(folder / "test.parquet"))
    assert "reward_model  struct<style: string, ground_truth: struct<target: int64, " in printed
    csv = answer("lengths", str(folder), "--format", "csv", f"storage.root={root}")
    header, train, test = csv.splitlines()
    assert header == "file,unit,rows,min,mean,p50,p90,p99,max"
    assert "train.parquet,characters,256,56" in train
    assert "test.parquet,characters,16,56" in test
    said = answer("lengths", *settings(root), "split=test")
    assert "no tokens: no model was made yet" in said


def test_lengths_are_told_in_the_tokens_of_the_model(answer, root, tiny_model_path):
    """The tiny model's tokens are bytes, and a prompt is ASCII."""
    words = ["lengths", *settings(root), "split=test", f"model.path={tiny_model_path}"]
    characters, tokens = json.loads(answer(*words, "--format", "json"))
    assert tokens == characters | {"unit": "tokens"}
    assert f"tokens are those of {tiny_model_path}\n" in answer(*words)


@pytest.mark.parametrize(("words", "said"), TABLES["nothing to look at"])
def test_a_look_at_nothing_ends_with_2(fails, root, words, said):
    assert said in fails("data", *words, *(settings(root) if words else []), root=None)
