from pathlib import Path

import pytest
import yaml

from flows.settings.compose import compose
from rl_core.data.dataset import dataset_folder, write_dataset
from rl_core.runs.run_folder import RunFolder

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())
SHORT = ["data.max_response_length=8", "resources.learner_threads=1"]


def test_a_model_is_asked_a_puzzle(cli, tmp_path, tiny_model_path):
    first, *_, last = cli("ask", str(tiny_model_path), "3 14 7 = 35", *SHORT).out.splitlines()
    assert first == f"{tiny_model_path}, greedy, at most 8 tokens"
    assert last == "0 of 1 correct"
    assert not list(tmp_path.iterdir())


def test_a_runs_model_is_asked_its_runs_problems(cli, tmp_path, tiny_model_path):
    root = f"storage.root={tmp_path}"
    config = compose([root, "run_id=mine", "data.train_size=256", "data.test_size=16", *SHORT])
    data = dataset_folder(config)
    write_dataset(config.env, config.data, data)
    RunFolder.create(config).update(data=str(data), model=str(tiny_model_path))
    printed = cli("ask", "mine/base", "problems=2", "samples=2").out
    assert printed.startswith("mine/base, 2 samples of each question, at most 8 tokens\n")
    assert printed.count("\n-- ") == 4
    assert "(8 tokens, cut there)" in printed
    assert printed.endswith(" of 4 correct\n")


@pytest.mark.parametrize(("words", "said"), TABLES["no question"])
def test_a_question_that_cannot_be_asked_ends_with_2(fails, tiny_model_path, words, said):
    assert said in fails("ask", *[word.format(model=tiny_model_path) for word in words])
