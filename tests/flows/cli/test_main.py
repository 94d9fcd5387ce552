from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flows
from flows.cli.commands import parse
from flows.cli.main import run_command
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder

PROGRAM = [sys.executable, "-c", "from flows.cli.main import main; main()"]


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that must end with exit code 2 and at most two lines; returns them."""
    assert run_command(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert 1 <= len(printed.err.splitlines()) <= 2
    assert "Traceback" not in printed.err
    return printed.err


def a_run(root: Path, run_id: str) -> RunFolder:
    return RunFolder.create(RunConfig(run_id=run_id, storage=StorageConfig(root=root)))


@pytest.mark.parametrize("command", ["run", "generate", "validate", "train"])
def test_bad_settings_end_with_2_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    root = f"storage.root={tmp_path}"
    (tmp_path / "file").touch()
    assert "unknown preset 'nope'" in fails(capsys, command, "preset=nope")
    assert "did you mean actor.lr?" in fails(capsys, command, "lr=abc")
    if command != "generate":  # which asks no model
        missing = fails(capsys, command, root, "model.path=/no/such/folder")
        assert "model.path=/no/such/folder" in missing
    unwritable = fails(capsys, command, f"storage.root={tmp_path}/file/x")
    assert "cannot be written" in unwritable
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_data_set_for_a_gpu_is_made_where_none_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = ["preset=tinyzero-0.5b-24gb", "data.train_size=256", "data.test_size=16"]
    assert run_command(["generate", *settings, f"storage.root={tmp_path}"]) == 0
    rows, folder = capsys.readouterr().out.splitlines()[-2:]
    assert rows == "256 train + 16 test rows, of preset=tinyzero-0.5b-24gb"
    assert sorted(path.name for path in Path(folder).iterdir()) == ["test.parquet", "train.parquet"]


def test_validate_shows_prompt_lengths_and_what_limit_would_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_overrides: list[str]
) -> None:
    arguments = ["validate", f"storage.root={tmp_path}", *tiny_overrides]
    assert run_command(arguments) == 0
    printed = capsys.readouterr().out
    assert "     tokens     train      test\n" in printed
    assert "      limit  rejected     share\n" in printed
    assert "all 80 prompts fit into data.max_prompt_length=600" in printed

    assert run_command([word.replace("_length=600", "_length=128") for word in arguments]) == 1
    failed = capsys.readouterr()
    assert "        128        80    100.0%  data.max_prompt_length\n" in failed.out
    said = failed.err.splitlines()[-1]
    assert said.startswith("countdown-train: ")
    assert "all 80 prompts are rejected by data.max_prompt_length=128" in said


def test_what_is_no_command_ends_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nope"], [], ["sql", "--format", "xml"], ["run", "--fast"]):
        with pytest.raises(SystemExit) as stopped:
            run_command(arguments)
        assert stopped.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_command([flag])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for command in ("run", "generate", "validate", "train", "prune", "evaluate", "report"):
        assert f"\n    {command}" in printed
    for command in ("preflight", "config", "runs", "sql", "data", "ask", "explain", "completion"):
        assert f"\n    {command}" in printed


def test_config_prints_the_resolved_settings(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    assert run_command(["config", "preset=tinyzero-3b", "seed=5"]) == 0
    printed = RunConfig.model_validate(yaml.safe_load(capsys.readouterr().out))
    assert (printed.preset, printed.seed, printed.model.path) == (
        "tinyzero-3b",
        5,
        "Qwen/Qwen2.5-3B",
    )


def test_preflight_ends_with_2_where_a_run_would_not_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = f"storage.root={tmp_path}"
    assert run_command(["preflight", root]) == 0
    assert "disk" in capsys.readouterr().out
    assert run_command(["preflight", root, "model.path=/nope"]) == 2
    printed = capsys.readouterr()
    assert "there is no such folder" in printed.out
    assert len(printed.err.splitlines()) == 1


def test_preflight_speaks_json_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["preflight", "--json", f"storage.root={tmp_path}"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in findings} == {"ok"}
    assert "memory" in [finding["check"] for finding in findings]


def test_runs_lists_what_is_there(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    assert run_command(["runs", f"storage.root={tmp_path}"]) == 0
    assert b"no rows" in capsysbinary.readouterr().out
    a_run(tmp_path, "alpha").update(status="finished", steps=7)
    assert run_command(["runs", f"storage.root={tmp_path}"]) == 0
    printed = capsysbinary.readouterr().out.decode()
    assert "alpha" in printed
    assert "finished" in printed


def test_sql_answers_in_each_format(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    run = a_run(tmp_path, "alpha")
    for step in (1, 2, 3):
        run.metrics.append(step, {"reward/accuracy": step / 10})
    question = ["sql", "-q", "select count(*) as n, max(step) as last from metrics"]
    root = f"storage.root={tmp_path}"

    def answer(output_format: str) -> bytes:
        assert run_command([*question, "--format", output_format, root]) == 0
        return capsysbinary.readouterr().out

    rows = json.loads(answer("json"))
    assert rows[0]["last"] == 3
    assert answer("csv").decode().splitlines()[0] == "n,last"
    assert b"last" in answer("table")
    assert answer("parquet")[:4] == b"PAR1"


def test_sql_runs_a_saved_question_with_parameters(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    root = f"storage.root={tmp_path}"
    a_run(tmp_path, "alpha")
    assert run_command(["sql", "longest_responses", "--run", "latest", "-p", "limit=3", root]) == 0
    assert b"(no rows)" in capsysbinary.readouterr().out
    assert run_command(["sql", "--list"]) == 0
    assert b"longest_responses" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sql"], "NAME"),
        (["sql", "learning_curve", "-q", "select 1"], "NAME"),
        (["sql", "lerning_curve"], "learning_curve"),
        (["sql", "-q", "selec 1"], "selec"),
        (["sql", "-q", "drop table metrics"], "SELECT"),
        (["sql", "longest_responses", "-p", "limit"], "KEY=VALUE"),
        (["sql", "longest_responses", "-p", "limit=many"], "limit=many"),
        (["sql", "learning_curve", "--run", "nobody"], "no run 'nobody'"),
        (["report", "run_id=nobody"], "no run 'nobody'"),
        (["report", "nobody"], "no run 'nobody'"),
        (["report", "alpha", "run_id=alpha"], "report takes one RUN"),
        (["watch", "alpha", "beta"], "watch takes one RUN"),
        (["prune", "run_id=nobody"], "no run 'nobody'"),
        (["evaluate"], "no run in"),
    ],
)
def test_questions_about_nothing_end_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    if "nobody" in " ".join(arguments):
        a_run(tmp_path, "alpha")
    assert words in fails(capsys, *arguments, f"storage.root={tmp_path}")


def test_prune_and_report_take_the_latest_run_under_its_own_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_run(tmp_path, "alpha")
    root = f"storage.root={tmp_path}"
    assert run_command(["prune", root, "checkpoints.keep_last=0"]) == 0
    assert run_command(["report", root]) == 0
    assert (tmp_path / "runs" / "alpha" / "report.html").is_file()
    capsys.readouterr()
    assert "preset cannot change" in fails(capsys, "prune", root, "preset=tinyzero-3b")


def test_a_dry_prune_shows_what_it_would_delete(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a_run(tmp_path, "alpha")
    run = tmp_path / "runs" / "alpha"
    for step in (1, 2, 3):
        save_checkpoint(run, step, lambda folder: folder.joinpath("x").touch() and None, 0.5)
    words = ["prune", f"storage.root={tmp_path}", "checkpoints.keep_last=0"]
    assert run_command([*words, "dry_run=true"]) == 0
    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines() if "step_" in line] == [
        ["step_000003", "kept"],
        ["step_000002", "deleted"],
        ["step_000001", "kept"],
    ]
    assert "older than the newest 0 beside latest and best" in table
    assert len(list((run / "checkpoints").glob("step_*"))) == 3
    assert run_command(words) == 0
    assert len(list((run / "checkpoints").glob("step_*"))) == 2
    capsys.readouterr()
    assert "dry_run=yes must be true or false" in fails(capsys, *words, "dry_run=yes")


def test_the_installed_program_ends_with_2_within_seconds(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "run", "lr=abc"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "countdown-train: unknown setting 'lr'; did you mean actor.lr?\n"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error() -> None:
    root = Path(flows.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    program = " ".join(("'" + PROGRAM[0] + "'", "-c", "'" + PROGRAM[2] + "'"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program} sql --list | true"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.stderr == ""


def test_sqls_help_names_every_view(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["sql", "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()
    views = {file.stem for file in (Path(__file__).parents[3] / "sql/views").glob("*.sql")}
    assert views - set(words) == set()
