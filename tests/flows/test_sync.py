"""`countdown-train sync`, against a server that speaks wandb's protocol and against none."""

from pathlib import Path

import pytest

from flows.cli.main import run_command
from rl_core.config.operations import StorageConfig, TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tests.support.fake_wandb import API_KEY, FakeWandb, closed_port


def a_run(root: Path, run_id: str, *loggers: str) -> RunFolder:
    trainer = TrainerConfig.model_validate({"logger": loggers})
    config = RunConfig(run_id=run_id, storage=StorageConfig(root=root), trainer=trainer)
    run = RunFolder.create(config)
    for step in range(3):
        run.metrics.append(step, {"critic/score/mean": step / 100})
    return run


def test_a_server_that_does_not_answer_is_one_line(tmp_path, monkeypatch, capsys):
    a_run(tmp_path, "one", "wandb")
    with closed_port() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        assert run_command(["sync", f"storage.root={tmp_path}"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"countdown-train: {url} does not answer (")
    assert said.err.endswith("): nothing was uploaded\n")
    assert said.err.count("\n") == 1


def test_what_names_no_run_is_bad_input(tmp_path, capsys):
    root = f"storage.root={tmp_path}"
    assert run_command(["sync", root]) == 2
    assert "no run in" in capsys.readouterr().err
    a_run(tmp_path, "one", "console")
    assert run_command(["sync", root, "run_id=oen"]) == 2
    assert "did you mean one?" in capsys.readouterr().err
    assert run_command(["sync", root, "all"]) == 2
    assert "has wandb in trainer.logger: run_id=RUN uploads any" in capsys.readouterr().err
    assert run_command(["sync", root, "all", "run_id=one"]) == 2
    assert "either all or run_id=one" in capsys.readouterr().err


@pytest.mark.slow
def test_all_runs_that_want_wandb_are_uploaded_once_and_failures_are_told(
    tmp_path, monkeypatch, capsys
):
    a_run(tmp_path, "first", "console", "wandb")
    a_run(tmp_path, "without", "console")
    a_run(tmp_path, "broken", "wandb")
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("trainer: {logger: [wandb]}")
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("COLUMNS", "300")
    arguments = ["sync", "all", f"storage.root={tmp_path}"]
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert run_command(arguments) == 1
        said = capsys.readouterr()
        assert said.err == "countdown-train: not uploaded: broken\n"
        assert sorted(cells(said.out)[1:]) == [
            ["broken", "failed", "0"],
            ["first", "uploaded", "3"],
        ]
        assert "config.yaml holds no settings of a run" in said.out
        assert [row["_step"] for row in server.rows("first")] == [0, 1, 2]
        assert list(server.lines) == ["first"]

        (tmp_path / "runs" / "broken" / "run.json").unlink()
        (tmp_path / "runs" / "broken" / "config.yaml").unlink()
        assert run_command(arguments) == 0
        assert cells(capsys.readouterr().out)[1:] == [["first", "already", "0"]]


def cells(table: str) -> list[list[str]]:
    """The first three columns of a printed table, its head included."""
    return [line.split()[:3] for line in table.splitlines() if len(line.split()) >= 3]
