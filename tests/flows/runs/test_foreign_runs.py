"""ATTACKS by the folder of somebody else's run: its settings may not have code imported."""

import sys
from pathlib import Path

import pytest
import yaml

from flows.cli.main import run_command
from flows.errors import BadInputError
from flows.prune import _settings
from flows.runs.lookup import existing_run, refuse_unnamed
from flows.runs.run_record import choose_run
from flows.settings.compose import compose
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder, write_dataset
from rl_core.envs import ENVS
from rl_core.runs.run_folder import RunFolder
from tests.support.echo.env import EchoConfig
from tests.support.runs import new_run

MODULE = """
from pathlib import Path
from typing import Literal
from tests.support.echo.env import EchoConfig
Path(__file__).with_name("imported").touch()

class ENV(EchoConfig):
    name: Literal["trap_env:ENV"] = "trap_env:ENV"
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that names a module as its env, and the file which that makes when it is imported."""
    (tmp_path / "trap_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = new_run(tmp_path)
    run.metrics.append(1, {"critic/score/mean": 0.5})
    run.update(status="interrupted", steps=1)
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    settings["env"]["name"] = "trap_env:ENV"
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "imported"


@pytest.mark.parametrize(
    "line",
    [
        *("evaluate run_id=r", "evaluate checkpoint=r", "prune run_id=r", "ask r 1", "export r"),
        *("rescore r env.full_score=2", "report r", "watch r", "runs", "sync run_id=r"),
    ],
)
def test_no_command_imports_what_a_runs_folder_names(line, imported, capsys):
    code = run_command([*line.split(), f"storage.root={imported.parent}"])
    assert not imported.exists()
    said = capsys.readouterr().err
    if line.startswith(("evaluate run_id", "prune", "rescore")):
        assert code == 2
        assert "add env=trap_env:ENV to the command if you trust it" in said


@pytest.mark.parametrize(
    "line", ["evaluate run_id=r", "prune run_id=r", "ask r 1", "export r", "report r", "watch r"]
)
def test_no_command_imports_the_algorithm_of_a_runs_folder(line, imported, capsys):
    run = RunFolder.under(imported.parent, "r")
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    settings["env"] = RunConfig().env.model_dump(mode="json")
    settings["algorithm"]["estimator"] = settings["actor"]["policy_loss"] = "trap_env:ENV"
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    run_command([*line.split(), f"storage.root={imported.parent}"])
    assert "trap_env" not in capsys.readouterr().err
    assert not imported.exists()


def test_a_new_run_and_the_nightly_pruning_pass_it_over(imported):
    config = RunConfig(storage=StorageConfig(root=imported.parent))
    assert choose_run(config, "new").run_id == "new"
    left = _settings(RunFolder.under(imported.parent, "r"), (), config.storage)
    assert isinstance(left, str)
    assert "names code" in left
    assert not imported.exists()


def test_it_is_imported_where_the_command_names_it(imported):
    run = RunFolder.under(imported.parent, "r")
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    settings["env"] = EchoConfig().model_dump(mode="json") | {"name": "trap_env:ENV"}
    try:
        (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
        where = ["run_id=r", f"storage.root={imported.parent}"]
        config, _ = existing_run([*where, "env=trap_env:ENV", "env.num_letters=5"])
        assert config.env.name == "trap_env:ENV"
        assert imported.exists()
    finally:
        ENVS.pop("trap_env:ENV", None)
        sys.modules.pop("trap_env", None)


NAMED = ["env.reward=trap_reward:score", "reward.env=[HF_TOKEN]"]
CLUSTER = "resources.ray_address=127.0.0.1:9"
REWARD = """
from pathlib import Path
Path(__file__).with_name("called").touch()

def score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


@pytest.fixture
def scored(tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that names a reward in the working folder; the file which that makes when loaded."""
    (tmp_path / "trap_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    sizes = ["data.train_size=8", "data.test_size=2", "data.train_batch_size=2"]
    sizes += ["actor.mini_batch_size=2", "data.max_response_length=8"]
    config = compose([f"storage.root={tmp_path}", "run_id=r", *sizes, *NAMED, CLUSTER])
    data = dataset_folder(config)
    write_dataset(config.env, config.data, data)
    run = RunFolder.create(config)
    run.metrics.append(1, {"critic/score/mean": 0.5})
    run.update(status="interrupted", steps=1, data=str(data), model=str(tiny_model_path))
    return tmp_path / "called"


@pytest.mark.parametrize(
    ("words", "to_add"),
    [
        (["ask", "r/base", "problems=1"], NAMED),
        (["ask", "r/base", "problems=1", NAMED[0]], NAMED[1:]),
        (["rescore", "r", "env.full_score=2"], NAMED),
        (["evaluate", "run_id=r"], [*NAMED, CLUSTER]),
        (["evaluate", "r/base"], [*NAMED, CLUSTER]),
        (["evaluate", "run_id=r", *NAMED], [CLUSTER]),
        (["evaluate", "checkpoint=r/base", "env.reward=null"], [CLUSTER]),
    ],
)
def test_no_command_calls_what_a_runs_folder_names(cli, words, to_add, scored):
    said = cli(*words, code=2).err
    assert f"add {' '.join(to_add)} to the command if you trust it" in said
    assert not scored.exists()


@pytest.mark.parametrize("words", [["prune", "run_id=r"], ["report", "r"], ["runs"]])
def test_commands_that_score_nothing_need_no_word(cli, words, scored):
    cli(*words)
    assert not scored.exists()


def test_a_reward_is_called_where_the_command_names_it(cli, scored):
    assert cli("ask", "r/base", "problems=1", *NAMED).out.endswith("1 of 1 correct\n")
    assert scored.exists()


HUB = ["data.train_files=[stranger/train]", "data.test_files=[stranger/test]"]
HUB += ["sft.data=stranger/sft"]


@pytest.fixture
def on_the_hub(scored: Path) -> RunFolder:
    """That run; its data set is gone, and its settings name others on the hub."""
    run = RunFolder.under(scored.parent, "r")
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    settings["data"] |= {"train_files": ["stranger/train"], "test_files": ["stranger/test"]}
    settings["model"]["path"] = "stranger/model"
    settings["sft"]["data"] = "stranger/sft"
    settings["env"]["reward"] = None
    settings["reward"]["env"] = []
    settings["resources"]["ray_address"] = None
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    run.update(data=str(scored.parent / "gone"))
    return run


@pytest.mark.parametrize(
    ("words", "to_add"),
    [
        (["evaluate", "r/base"], HUB),
        (["evaluate", "run_id=r"], HUB),
        (["ask", "r/base", "problems=1", *HUB[:2]], HUB[2:]),
        (["rescore", "r", "env.full_score=2"], HUB),
    ],
)
def test_no_command_fetches_what_a_runs_folder_names(cli, words, to_add, on_the_hub):
    said = cli(*words, code=2).err
    assert f"add {' '.join(to_add)} to the command if you trust it" in said


@pytest.mark.parametrize(
    "words", [["evaluate", "r/base"], ["evaluate", "run_id=r"], ["ask", "r/base", "1"]]
)
def test_a_base_model_is_looked_for_on_the_disk_only(cli, words, on_the_hub):
    on_the_hub.update(model="stranger/model")
    said = cli(*words, *HUB, code=2).err
    assert said == "countdown-train: the base model of r is not in stranger/model any more\n"


def test_the_data_set_of_an_env_is_its_own_or_named():
    for source in ("openai/gsm8k", "toy"):
        refuse_unnamed(compose(["env=gsm8k", f"env.source={source}"]), [])
    config = compose(["env=gsm8k", "env.source=stranger/gsm8k"])
    refuse_unnamed(config, ["env.source=stranger/gsm8k"])
    with pytest.raises(BadInputError, match=r"add env\.source=stranger/gsm8k to the"):
        refuse_unnamed(config, [])
