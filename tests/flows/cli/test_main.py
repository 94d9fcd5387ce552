import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import flows
from flows.cli.commands import COMMANDS, GROUPS, parse
from flows.cli.main import run_command
from rl_core.checkpoints.store import save_checkpoint
from tests.support import programs
from tests.support.checkpoint_files import steps, writer
from tests.support.runs import new_run, write_rollouts

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text())


@pytest.mark.parametrize("command", ["run", "generate", "validate", "train"])
def test_bad_settings_end_with_2_before_anything_starts(fails, tmp_path, command):
    (tmp_path / "file").touch()
    assert "unknown preset 'nope'" in fails(command, "preset=nope")
    assert "did you mean actor.lr?" in fails(command, "lr=abc")
    if command != "generate":  # which asks no model
        assert "model.path=/no/such/folder" in fails(command, "model.path=/no/such/folder")
    assert "cannot be written" in fails(command, root=tmp_path / "file" / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_validate_checks_rows_where_the_model_cannot_be_had(cli, tmp_path):
    """As for `preset=tinyzero-3b` on a laptop; HF_HUB_OFFLINE is set in tests."""
    sizes = ["data.train_size=256", "data.test_size=16"]
    words = ["validate", "preset=tinyzero-3b", "model.path=no-such/model", *sizes]
    last = cli(*words).out.splitlines()[-1]
    assert "checks passed, and prompts were not measured: model.path=no-such/model is not" in last
    (train,) = tmp_path.glob("data/*/train.parquet")
    train.write_bytes(train.read_bytes()[:-100])
    cli(*words, code=1)


def test_validate_shows_prompt_lengths_and_what_limit_would_do(cli, tiny_overrides):
    arguments = ["validate", *tiny_overrides]
    printed = cli(*arguments).out
    assert "      limit  rejected     share\n" in printed
    assert "all 80 prompts fit into data.max_prompt_length=600" in printed

    failed = cli(*[word.replace("_length=600", "_length=128") for word in arguments], code=1)
    assert "        128        80    100.0%  data.max_prompt_length\n" in failed.out
    said = failed.err.splitlines()[-1]
    assert said.startswith("countdown-train: ")
    assert "all 80 prompts are rejected by data.max_prompt_length=128" in said


@pytest.mark.parametrize(("arguments", "said"), TABLES["no command"])
def test_what_is_no_command_is_one_line_that_names_the_nearest(cli, arguments, said):
    (line,) = cli(*arguments, code=2, root=None).err.splitlines()
    assert said in line


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["help"], []])
def test_help_lists_every_command_in_groups(cli, words):
    printed = cli(*words, root=None).out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert len(GROUPS) == 4
    for title, names in GROUPS.items():
        assert f"\n{title}:\n    {names[0]}" in printed
        assert all(f"\n    {name} " in printed for name in names)


def test_the_version_and_a_commands_own_help(cli):
    own = f"countdown-train {version('countdown-train')}\n"
    assert cli("--version", root=None).out == own
    assert cli("help", "sql", root=None).out.startswith("usage: countdown-train sql ")


@pytest.mark.parametrize(("arguments", "words"), TABLES["no such run"])
def test_commands_that_read_a_run_say_why_they_cannot(fails, tmp_path, arguments, words):
    new_run(tmp_path, "alpha")
    new_run(tmp_path, "beta")
    assert words in fails(*arguments)


def test_runs_sql_and_prune_take_a_run(cli, fails, tmp_path):
    assert "no rows" in cli("runs").out
    assert "no run in" in fails("evaluate")
    for run_id in ("alpha", "beta"):
        new_run(tmp_path, run_id).metrics.append(1, {"reward/accuracy": 0.5})
    own = "select run_id from metrics where step = 1"
    for words in (["runs"], ["sql", "learning_curve"], ["sql", "-q", own], ["sql", own]):
        assert "alpha" in cli(*words, "alpha").out
        assert "beta" not in cli(*words, "run_id=alpha").out
        assert "alpha" not in cli(*words, "latest").out
    assert "(no rows)" in cli("prune", "alpha", "dry_run=true").out


def test_a_run_whose_record_is_cut_short_is_listed_as_unreadable(cli, tmp_path):
    new_run(tmp_path, "alpha")
    record = new_run(tmp_path, "beta").path / "run.json"
    for damaged in (record.read_text()[:150], "[]", "\0" * 40):
        record.write_text(damaged)
        printed = cli("runs").out
        assert "unreadable" in printed
        assert "running" in printed
    (line,) = cli("report", "beta", code=2).err.splitlines()
    assert line.endswith("is cut short or damaged: restore it, or delete the run's folder")


def test_a_value_that_no_row_has_names_those_that_are_there(cli, fails, tmp_path):
    run = new_run(tmp_path, "alpha")
    run.metrics.append(1, {"critic/kl": 0.1})
    write_rollouts(run.path, [{"verdict": "wrong_value"}])
    said = cli("sql", "samples_of_a_verdict", "-p", "verdict=wrong_valeu").err
    assert "verdict=wrong_valeu: no row of rollouts has it; did you mean wrong_value?" in said
    assert "there are: wrong_value" in said
    assert "critic/kl" in cli("sql", "metric_over_time", "-p", "metric=kl").err
    assert "there are won, lost, both" in fails("sql", "won_and_lost", "-p", "change=wno")


@pytest.mark.parametrize("command", ["preflight", "run", "generate"])
def test_settings_that_cannot_be_met_end_with_2_and_no_name_of_an_error(cli, command):
    task = ["env=reasoning_gym", "env.task=[lettr_counting]", "model.path=/nope"]
    printed = "".join(cli(command, *task, code=2))
    assert "no task of reasoning-gym; did you mean letter_counting?" in printed
    assert "ValueError" not in printed
    if command == "generate":
        too_many = "data.train_size + data.test_size = 20512 puzzles asked, but only 1"
        said = cli(command, "data.train_size=20000", code=2).err
        assert said.startswith(f"countdown-train: {too_many}")


def test_a_card_that_is_planned_for_need_not_be_here(cli):
    on_gpu = ["resources.learner_gpus=1", "resources.rollout_gpus=1", "rollout.num_engines=1"]
    printed = cli("preflight", "resources.card=H100", *on_gpu).out
    assert "planned for resources.card=H100 only" in printed
    assert "roofline of H100" in printed


def test_an_ascii_terminal_ends_no_command(tmp_path):
    run = new_run(tmp_path, "alpha")
    for step in (1, 2, 3):
        run.metrics.append(step, {"reward/accuracy": step / 10})
    asked = {"accuracy": ["watch", "alpha"], "letter": ["sql", "-q", "select 'é' as letter"]}
    for shown, words in asked.items():
        ascii_only = {"PYTHONIOENCODING": "ascii"}
        done = programs.cli(*words, f"storage.root={tmp_path}", more=ascii_only, timeout_s=120)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert shown in done.stdout


def test_a_folder_of_prefect_that_cannot_be_written_is_one_line(tmp_path):
    home = {"PREFECT_HOME": "/dev/null/x"}
    done = programs.cli("run", f"storage.root={tmp_path}", more=home, timeout_s=120)
    assert done.returncode == 2
    assert done.stderr == (
        "countdown-train: Prefect's folder /dev/null/x cannot be written (Not a directory): "
        "set PREFECT_HOME to a folder of yours\n"
    )


def test_preflight_ends_with_2_where_a_run_would_not_start(cli):
    assert "disk" in cli("preflight").out
    printed = cli("preflight", "model.path=/nope", code=2)
    assert "there is no such folder" in printed.out
    assert len(printed.err.splitlines()) == 1


def test_sql_writes_a_parquet_file_as_it_is(capsysbinary, tmp_path):
    question = ["sql", "-q", "select 1 as n", "--format", "parquet", f"storage.root={tmp_path}"]
    assert run_command(question) == 0
    assert capsysbinary.readouterr().out[:4] == b"PAR1"


def test_prune_and_report_take_the_latest_run_under_its_own_settings(cli, fails, tmp_path):
    new_run(tmp_path, "alpha")
    cli("prune", "checkpoints.keep_last=0")
    cli("report")
    assert (tmp_path / "runs" / "alpha" / "report.html").is_file()
    assert "preset cannot change" in fails("prune", "preset=tinyzero-3b")


def test_a_dry_prune_shows_what_it_would_delete(cli, fails, tmp_path):
    run = new_run(tmp_path, "alpha").path
    for step in (1, 2, 3):
        save_checkpoint(run, step, writer(), 0.5)
    words = ["prune", "checkpoints.keep_last=0"]
    table = cli(*words, "dry_run=true").out
    (deleted,) = (line.split()[0] for line in table.splitlines() if " deleted " in line)
    assert (deleted, steps(run)) == ("step_000002", [1, 2, 3])
    cli(*words)
    assert steps(run) == [1, 3]
    assert "dry_run=yes must be true or false" in fails(*words, "dry_run=yes")


def test_the_installed_program_ends_with_2_within_seconds(tmp_path):
    done = programs.cli("run", "lr=abc", cwd=tmp_path, timeout_s=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "countdown-train: unknown setting 'lr'; did you mean actor.lr?\n"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error():
    root = Path(flows.__file__).parent.parent
    program = f"'{sys.executable}' -c 'from flows.cli.main import main; main()'"
    piped = f"set -o pipefail; {program} sql --list | true"
    done = programs.run("bash", "-c", piped, more={"PYTHONPATH": str(root)}, timeout_s=60)
    assert done.stderr == ""


def test_sqls_help_names_every_view(cli):
    words = re.split(r"[\s,.]+", cli("sql", "--help", root=None).out)
    views = {file.stem for file in (Path(__file__).parents[3] / "sql/views").glob("*.sql")}
    assert views - set(words) == set()


@pytest.mark.parametrize(
    "words", [["seed = 5"], ["seed", "=", "5"], ["seed=", "5"], ["seed", "=5"], ["seed =5"]]
)
def test_blanks_may_stand_around_an_equals_sign(words):
    assert parse(["config", *words, "preset=gsm8k-toy"])["words"] == ["seed=5", "preset=gsm8k-toy"]


def test_an_equals_sign_in_a_question_is_left_alone():
    words = ["latest", "3 14 7 = 35", "x = 5", "data.max_response_length = 64"]
    asked = ["latest", "3 14 7 = 35", "x = 5", "data.max_response_length=64"]
    assert parse(["ask", *words])["words"] == asked


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_command_imports_is_one_line(name):
    """The signal comes before anything but the package itself is imported."""
    code = (
        "import os, signal, sys; sys.argv = ['/bin/countdown-train', 'runs']; import flows.cli; "
        f"os.kill(os.getpid(), signal.{name}); import flows.cli.main; raise SystemExit(9)"
    )
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "countdown-train: interrupted\n")


def test_an_interrupt_that_a_library_wraps_is_one_line(cli, monkeypatch):
    def wrapped(words: object, last: object) -> None:
        raise ValueError("Error calling function `f`: KeyboardInterrupt: SIGTERM")

    monkeypatch.setattr("flows.cli.main.resolve_name", lambda name: wrapped)
    assert cli("runs", code=1).err == "countdown-train: interrupted\n"


def test_runs_without_common_problems_are_compared_in_words(cli, tmp_path):
    for name in ("one", "two"):
        new_run(tmp_path, run_id=name)
    out = cli("compare", "one", "two").out
    assert "none: no two of them were evaluated on the same test problems" in out
