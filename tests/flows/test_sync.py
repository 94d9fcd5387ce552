"""`countdown-train sync`, against a server that speaks wandb's protocol and against none."""

from pathlib import Path

import pytest

from rl_core.runs.run_folder import RunFolder
from tests.support.fake_wandb import API_KEY, FakeWandb, closed_port
from tests.support.runs import new_run


def a_run(root: Path, run_id: str, *loggers: str) -> RunFolder:
    run = new_run(root, run_id, trainer={"logger": loggers})
    for step in range(3):
        run.metrics.append(step, {"critic/score/mean": step / 100})
    return run


def test_a_server_that_does_not_answer_is_one_line(cli, tmp_path, monkeypatch):
    a_run(tmp_path, "one", "wandb")
    with closed_port() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        said = cli("sync", code=1)
    assert said.out == ""
    assert said.err.startswith(f"countdown-train: {url} does not answer (")
    assert said.err.endswith("): nothing was uploaded\n")
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_a_run_is_uploaded_once_and_a_failure_is_told(cli, tmp_path, monkeypatch):
    a_run(tmp_path, "first", "console", "wandb")
    broken = a_run(tmp_path, "broken", "wandb")
    (broken.path / "config.yaml").write_text("trainer: {logger: [wandb]}")
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("COLUMNS", "300")
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert cells(cli("sync", "first").out)[1:] == [["first", "uploaded", "3"]]
        assert [row["_step"] for row in server.rows("first")] == [0, 1, 2]
        assert cells(cli("sync", "first").out)[1:] == [["first", "already", "0"]]
        said = cli("sync", "broken", code=1)
        assert "config.yaml holds no settings of a run" in said.out
        assert said.err == "countdown-train: not uploaded: broken\n"
        assert list(server.lines) == ["first"]


def cells(table: str) -> list[list[str]]:
    """The first three columns of a printed table, its head included."""
    return [line.split()[:3] for line in table.splitlines() if len(line.split()) >= 3]
