import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import flows
from flows.cli.commands import COMMANDS, GROUPS, parse
from flows.cli.main import run_command
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.types import Completion, Problem, Rollout, ScoredText

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
def test_bad_settings_end_with_2_before_anything_starts(capsys, tmp_path, command):
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


def test_a_data_set_for_a_gpu_is_made_where_none_is(capsys, tmp_path):
    settings = ["preset=tinyzero-0.5b-24gb", "data.train_size=256", "data.test_size=16"]
    assert run_command(["generate", *settings, f"storage.root={tmp_path}"]) == 0
    rows, folder = capsys.readouterr().out.splitlines()[-2:]
    assert rows == "256 train + 16 test rows, of preset=tinyzero-0.5b-24gb"
    assert sorted(path.name for path in Path(folder).iterdir()) == ["test.parquet", "train.parquet"]


def test_validate_checks_rows_where_the_model_cannot_be_had(capsys, tmp_path):
    """As for `preset=tinyzero-3b` on a laptop; HF_HUB_OFFLINE is set in tests."""
    sizes = ["data.train_size=256", "data.test_size=16"]
    words = ["preset=tinyzero-3b", "model.path=no-such/model", *sizes, f"storage.root={tmp_path}"]
    assert run_command(["validate", *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "checks passed, and prompts were not measured: model.path=no-such/model is not" in last
    (train,) = tmp_path.glob("data/*/train.parquet")
    train.write_bytes(train.read_bytes()[:-100])
    assert run_command(["validate", *words]) != 0


def test_validate_shows_prompt_lengths_and_what_limit_would_do(capsys, tmp_path, tiny_overrides):
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


def test_what_is_no_command_ends_with_2_and_one_line(capsys):
    for arguments in (["nope"], ["-x"], ["sql", "--format", "xml"], ["run", "--fast"]):
        with pytest.raises(SystemExit) as stopped:
            run_command(arguments)
        assert stopped.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean run?"),
        (["evalute", "alpha"], "did you mean evaluate?"),
        (["runs", "--hepl"], "unknown option --hepl; did you mean --help?"),
        (["sql", "learning_curve", "--fromat=csv"], "did you mean --format?"),
        (["--vresion"], "did you mean --version?"),
    ],
)
def test_what_is_mistyped_names_the_nearest(capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        run_command(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["help"], []])
def test_help_lists_every_command_in_groups(capsys, words):
    with pytest.raises(SystemExit) as stopped:
        run_command(words)
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert len(GROUPS) == 4
    for title, names in GROUPS.items():
        assert f"\n{title}:\n    {names[0]}" in printed
        assert all(f"\n    {name} " in printed for name in names)


def test_the_version_and_a_commands_own_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"countdown-train {version('countdown-train')}\n"
    with pytest.raises(SystemExit):
        run_command(["help", "sql"])
    assert capsys.readouterr().out.startswith("usage: countdown-train sql ")


@pytest.mark.parametrize(
    "words", [["seed = 5"], ["seed", "=", "5"], ["seed=", "5"], ["seed", "=5"], ["seed =5"]]
)
def test_blanks_may_stand_around_an_equals_sign(words):
    assert parse(["config", *words, "preset=gsm8k-toy"])["words"] == ["seed=5", "preset=gsm8k-toy"]


def test_an_equals_sign_in_a_question_is_left_alone():
    words = ["latest", "3 14 7 = 35", "x = 5", "data.max_response_length = 64"]
    asked = ["latest", "3 14 7 = 35", "x = 5", "data.max_response_length=64"]
    assert parse(["ask", *words])["words"] == asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "alpha"], "run alpha did not get as far as"),
        (["evaluate", "alpha/best"], "alpha has no checkpoint 'best'"),
        (["data", "head", "alpha"], "run alpha did not get as far as a data set"),
        (["data", "head", "latest"], "run beta did not get as far as a data set"),
        (["evaluate", "run_id=latest"], "run beta did not get as far as"),
        (["prune", "alpah"], "did you mean alpha? (`countdown-train runs` lists them)"),
        (["sync", "alpah"], "did you mean alpha?"),
        (["runs", "alpah"], "did you mean alpha?"),
        (["sql", "learning_curve", "alpah"], "did you mean alpha?"),
        (["sql", "learning_curve", "alpha", "--run", "beta"], "sql takes one RUN, not alpha and"),
    ],
)
def test_a_run_may_stand_alone_in_each_command_that_reads_one(capsys, tmp_path, arguments, words):
    a_run(tmp_path, "alpha")
    a_run(tmp_path, "beta")
    assert words in fails(capsys, *arguments, f"storage.root={tmp_path}")


def test_runs_sql_and_prune_take_a_run(capsysbinary, tmp_path):
    root = f"storage.root={tmp_path}"
    for run_id in ("alpha", "beta"):
        a_run(tmp_path, run_id).metrics.append(1, {"reward/accuracy": 0.5})

    def printed(*arguments: str) -> str:
        assert run_command([*arguments, root]) == 0
        return capsysbinary.readouterr().out.decode()

    for words in (["runs"], ["sql", "learning_curve"], ["sql", "-q", "select run_id from metrics"]):
        assert "alpha" in printed(*words, "alpha")
        assert "beta" not in printed(*words, "run_id=alpha")
        assert "alpha" not in printed(*words, "latest")
    assert "(no rows)" in printed("prune", "alpha", "dry_run=true")


def test_a_run_whose_record_is_cut_short_is_listed_as_unreadable(capsysbinary, tmp_path):
    root = f"storage.root={tmp_path}"
    a_run(tmp_path, "alpha")
    record = a_run(tmp_path, "beta").path / "run.json"
    for damaged in (record.read_text()[:150], "[]", "\0" * 40):
        record.write_text(damaged)
        assert run_command(["runs", root]) == 0
        printed = capsysbinary.readouterr().out.decode()
        assert "unreadable" in printed
        assert "running" in printed
    assert run_command(["report", "beta", root]) == 2
    (line,) = capsysbinary.readouterr().err.decode().splitlines()
    assert line.endswith("is cut short or damaged: restore it, or delete the run's folder")


def test_a_value_that_no_row_has_names_those_that_are_there(capsys, tmp_path):
    run = a_run(tmp_path, "alpha")
    run.metrics.append(1, {"critic/kl": 0.1})
    problem = Problem(5, "countdown", ({"role": "user", "content": "?"},), {}, 1)
    logprobs = np.array([-0.1], dtype=np.float32)
    completion = Completion(np.arange(1), logprobs, "stop")
    scored = ScoredText(0.1, "wrong_value", "1 + 2")
    rollout = Rollout(problem, 0, 0, "?", (1, 2), completion, "1 + 2", scored)
    run.rollouts.write(1, 1, [rollout], {})
    root = f"storage.root={tmp_path}"
    verdict = "samples_of_a_verdict"

    def said_of(*words: str) -> str:
        assert run_command(["sql", *words, root]) == 0
        return capsys.readouterr().err

    said = said_of(verdict, "-p", "verdict=wrong_valeu")
    assert "verdict=wrong_valeu: no row of rollouts has it; did you mean wrong_value?" in said
    assert "there are: wrong_value" in said
    assert "critic/kl" in said_of("metric_over_time", "-p", "metric=kl")
    assert "there are won, lost, both" in fails(
        capsys, "sql", "won_and_lost", "-p", "change=wno", root
    )


@pytest.mark.parametrize("command", ["preflight", "run", "generate"])
def test_settings_that_cannot_be_met_end_with_2_and_no_name_of_an_error(capsys, tmp_path, command):
    task = ["env=reasoning_gym", "env.task=[lettr_counting]", "model.path=/nope"]
    assert run_command([command, *task, f"storage.root={tmp_path}"]) == 2
    printed = capsys.readouterr()
    assert "no task of reasoning-gym; did you mean letter_counting?" in printed.out + printed.err
    assert "ValueError" not in printed.out + printed.err
    if command == "generate":
        assert run_command([command, "data.train_size=20000", f"storage.root={tmp_path}"]) == 2
        assert capsys.readouterr().err.startswith(
            "countdown-train: data.train_size + data.test_size = 20512 puzzles asked, but only 1"
        )


def test_a_card_that_is_planned_for_need_not_be_here(capsys, tmp_path):
    on_gpu = ["resources.learner_gpus=1", "resources.rollout_gpus=1", "rollout.num_engines=1"]
    words = ["preflight", "resources.card=H100", *on_gpu, f"storage.root={tmp_path}"]
    assert run_command(words) == 0
    printed = capsys.readouterr().out
    assert "planned for resources.card=H100 only" in printed
    assert "roofline of H100" in printed


def test_an_ascii_terminal_ends_no_command(tmp_path):
    run = a_run(tmp_path, "alpha")
    for step in (1, 2, 3):
        run.metrics.append(step, {"reward/accuracy": step / 10})
    for words, shown in (
        (["watch", "alpha"], b"_=#"),
        (["sql", "-q", "select 'é' as letter"], b"letter"),
    ):
        done = subprocess.run(
            [*PROGRAM, *words, f"storage.root={tmp_path}"],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode("ascii")
        assert shown in done.stdout
        assert done.stderr == b""


def test_a_folder_of_prefect_that_cannot_be_written_is_one_line(tmp_path):
    done = subprocess.run(
        [*PROGRAM, "run", f"storage.root={tmp_path}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PREFECT_HOME": "/dev/null/x"},
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "countdown-train: Prefect's folder /dev/null/x cannot be written (Not a directory): "
        "set PREFECT_HOME to a folder of yours\n"
    )


def test_config_prints_the_resolved_settings(capsys):
    import yaml

    assert run_command(["config", "preset=tinyzero-3b", "seed=5"]) == 0
    printed = RunConfig.model_validate(yaml.safe_load(capsys.readouterr().out))
    assert (printed.preset, printed.seed, printed.model.path) == (
        "tinyzero-3b",
        5,
        "Qwen/Qwen2.5-3B",
    )


def test_preflight_ends_with_2_where_a_run_would_not_start(capsys, tmp_path):
    root = f"storage.root={tmp_path}"
    assert run_command(["preflight", root]) == 0
    assert "disk" in capsys.readouterr().out
    assert run_command(["preflight", root, "model.path=/nope"]) == 2
    printed = capsys.readouterr()
    assert "there is no such folder" in printed.out
    assert len(printed.err.splitlines()) == 1


def test_preflight_speaks_json_too(capsys, tmp_path):
    assert run_command(["preflight", "--json", f"storage.root={tmp_path}"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in findings} == {"ok"}
    assert "memory" in [finding["check"] for finding in findings]


def test_runs_lists_what_is_there(capsysbinary, tmp_path):
    assert run_command(["runs", f"storage.root={tmp_path}"]) == 0
    assert b"no rows" in capsysbinary.readouterr().out
    a_run(tmp_path, "alpha").update(status="finished", steps=7)
    assert run_command(["runs", f"storage.root={tmp_path}"]) == 0
    printed = capsysbinary.readouterr().out.decode()
    assert "alpha" in printed
    assert "finished" in printed


def test_sql_answers_in_each_format(capsysbinary, tmp_path):
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


def test_sql_runs_a_saved_question_with_parameters(capsysbinary, tmp_path):
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
def test_questions_about_nothing_end_with_2(capsys, tmp_path, arguments, words):
    if "nobody" in " ".join(arguments):
        a_run(tmp_path, "alpha")
    assert words in fails(capsys, *arguments, f"storage.root={tmp_path}")


def test_prune_and_report_take_the_latest_run_under_its_own_settings(capsys, tmp_path):
    a_run(tmp_path, "alpha")
    root = f"storage.root={tmp_path}"
    assert run_command(["prune", root, "checkpoints.keep_last=0"]) == 0
    assert run_command(["report", root]) == 0
    assert (tmp_path / "runs" / "alpha" / "report.html").is_file()
    capsys.readouterr()
    assert "preset cannot change" in fails(capsys, "prune", root, "preset=tinyzero-3b")


def test_a_dry_prune_shows_what_it_would_delete(capsys, tmp_path):
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


def test_the_installed_program_ends_with_2_within_seconds(tmp_path):
    done = subprocess.run(
        [*PROGRAM, "run", "lr=abc"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "countdown-train: unknown setting 'lr'; did you mean actor.lr?\n"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error():
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


def test_sqls_help_names_every_view(capsys):
    with pytest.raises(SystemExit):
        parse(["sql", "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()
    views = {file.stem for file in (Path(__file__).parents[3] / "sql/views").glob("*.sql")}
    assert views - set(words) == set()
