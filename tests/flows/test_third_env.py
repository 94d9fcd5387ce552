"""A third family of problems is a package that offers its class: it goes all the way to the page.

Its folder is `tests/support/echo/`; nothing in the project knows its name.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from flows.cli.explain import all_settings, in_words
from flows.errors import BadInputError
from flows.settings.compose import compose
from rl_core.data.dataset import read_problems, write_dataset
from rl_core.envs import ENVS
from rl_core.rewards.scoring import start_rewards
from tasks.ask import question_of, read_question
from tasks.importers.launch_script import import_script
from tasks.preflight import preflight_validation
from tasks.validate import check_dataset, check_files
from tests.support.echo.env import EchoConfig
from tests.support.programs import python

ROOT = Path(__file__).parents[2]
STAGES = """
import sys
from flows.cli.main import run_command
stages, root, *settings = sys.argv[1:]
for stage in stages.split(","):
    more = settings if stage in ("generate", "validate", "train") else []
    more = more if stage in ("generate", "validate") else [*more, "run_id=one"]
    run_command([stage, root, *more]) == 0 or sys.exit(stage)
"""
EACH = """
import sys
from flows.cli.main import run_command
root, *envs = sys.argv[1:]
for env in envs:
    run_command(["generate", root, f"env='{env}'"]) == 2 or sys.exit(env)
"""
PAGE = (ROOT / "docs" / "data.md").read_text()
LETTERS = PAGE.split("```python\n")[1].partition("```")[0]
"""The class of the docs, word for word."""
SIZES = ["data.train_size=40", "data.test_size=8", "data.train_batch_size=8"]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ENVS with a third env, for one test."""
    monkeypatch.setitem(ENVS, "echo", EchoConfig)
    all_settings.cache_clear()
    yield
    all_settings.cache_clear()


@pytest.mark.usefixtures("echo")
def test_its_settings_are_composed_checked_and_explained():
    config = compose(["env=echo", "env.num_letters=5", "env.full_score=2"])
    assert config.model_dump(mode="json")["env"]["num_letters"] == 5
    assert compose(["env.num_letters=6"], base=config).env.num_letters == 6
    for wrong, said in (
        (["env=echo", "env.num_letters=27"], "env.num_letters=27: Input should be less than"),
        (["env=echo", "env.max_operands=3"], "it belongs to env=countdown"),
        (["env.num_letters=3"], "under env=countdown: it belongs to env=echo"),
        (["env=ecko"], "did you mean echo"),
    ):
        with pytest.raises(BadInputError, match=said):
            compose(wrong)
    words = [in_words(setting) for setting in all_settings() if setting.env == "echo"]
    assert any("Letters that are asked for, from a." in text for text in words)


@pytest.mark.usefixtures("echo")
def test_its_rows_are_made_read_checked_and_scored(tmp_path):
    config = compose(["env=echo", "env.num_letters=5", "actor.mini_batch_size=8", *SIZES])
    write_dataset(config.env, config.data, tmp_path / "made")
    checked = check_dataset(config, tmp_path / "made", lambda prompts: [7] * len(prompts))
    names = [file.stem for file in check_files(config.env)]
    assert names[0] == "echo_columns"
    assert "index_gapless" in names
    assert not [name for name in names if name.startswith(("countdown", "gsm8k"))]
    assert [result["check"] for result in checked.checks][: len(names)] == names

    problem = read_problems(tmp_path / "made" / "test.parquet")[0]
    letter = problem.ground_truth["letter"]
    assert question_of(config, problem).shown == f"say {letter}"
    assert read_question(config, letter).problem.messages == problem.messages
    with start_rewards(config.env) as rewards:
        assert rewards.submit(f"1{letter}", problem).result().verdict == "correct"

    rows = tmp_path / "own.jsonl"
    rows.write_text("".join(f'{{"letter": "{c}"}}\n' for c in "abcdefghijklmnopqrstuvwxyz"))
    own = compose(["env=echo", f"data.train_files={rows}", "data.test_size=4"])
    write_dataset(own.env, own.data, tmp_path / "own")
    assert len(read_problems(tmp_path / "own" / "train.parquet")) == 22
    check_dataset(own, tmp_path / "own", lambda prompts: [7] * len(prompts))


@pytest.mark.usefixtures("echo")
def test_what_it_lacks_is_said_and_what_it_does_not_know_leaves_others_alone():
    findings = preflight_validation(compose(["env=echo"]))
    (model,) = [found for found in findings if found.level == "fatal"]
    assert "the home-made base model learns only Countdown with 3 or 4 numbers" in model.message
    script = "python3 -m verl.trainer.main_ppo data.train_files=gsm8k/train.parquet"
    assert import_script(script).settings["env.name"] == "gsm8k"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder where Python finds it."""
    site = tmp_path / "site"
    site.mkdir()
    own_name = 'from typing import Literal\nclass Other(Letters):\n    name: Literal["o"] = "o"\n'
    (site / "letters.py").write_text(LETTERS + own_name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_a_named_env_is_one_line(tmp_path):
    wrong = {
        "custm": "unknown env 'custm'; did you mean custom? (there are: countdown, gsm8k, ",
        "letters:No": "env=letters:No cannot be loaded: AttributeError: ",
        "letters:Other": "calls itself 'o': the default of its settings' `name` must be",
        "letters:Field": "env=letters:Field must be a class of TextEnv, not",
        "nowhere.to:ENV": "env=nowhere.to:ENV cannot be loaded: ModuleNotFoundError: ",
        ":": "env=: cannot be loaded: ",
    }
    done = python(EACH, f"storage.root={tmp_path / 'none'}", *wrong)
    assert done.returncode == 0, done.stderr
    for line, said in zip(done.stderr.splitlines(), wrong.values(), strict=True):
        assert said in line
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_it_trains_and_is_evaluated_and_reported(tmp_path, tiny_overrides):
    name = "letters:Letters"
    done = python(
        STAGES,
        "generate,validate,train,evaluate,report",
        f"storage.root={tmp_path}",
        *(f"env={name}", "env.prompt_template=base", "env.num_letters=9", *tiny_overrides),
        *("rollout.engine=hf", "trainer.total_steps=2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout
    (train,) = tmp_path.glob("data/*/train.parquet")
    assert train.parent.name.startswith("letters.Letters-")
    run = tmp_path / "runs" / "one"
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("finished", 2)
    rollouts = pl.read_parquet(run / "rollouts" / "*.parquet")
    assert set(rollouts["data_source"]) == {name}
    assert set(rollouts["verdict"]) <= {"correct", "wrong_value", "no_answer"}
    evaluated = pl.read_parquet(run / "eval" / "*.parquet")
    assert set(evaluated["model"]) == {"base", "step_000002"}
    assert evaluated["num_operands"].null_count() == evaluated.height
    assert name.lower() in (run / "report.html").read_text().lower()
