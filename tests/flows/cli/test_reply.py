"""`--json`: one valid JSON object on standard output, whatever a run's files hold."""

import json
import shutil
import sys

import jsonschema
import pytest

from flows.cli import answers
from flows.cli.commands import COMMANDS
from flows.cli.reply import facts_of, give, only_json, reply
from flows.cli.stages import _show_evaluated
from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.summary import compare, summarise
from rl_core.runs.run_folder import RunFolder
from tasks.evaluate import Evaluated
from tests.support import programs
from tests.support.runs import new_run
from tests.support.stored_run import STORED, without_gone_settings

ANSWERS = {name: command.answer for name, command in COMMANDS.items() if command.answer}
HOSTILE = '\x1b[31m\x9b\u202e"}]\n' + 30_000 * "A" + "\ud800"


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


def parsed(text):
    """The object, if it is all that there is and as the schema says."""
    (line,) = text.splitlines()
    assert line.isascii()
    whole = json.loads(line, parse_constant=no_constant)
    jsonschema.validate(whole, answers.Reply.model_json_schema(mode="serialization"))
    if whole["answer"] is not None:
        model = getattr(answers, ANSWERS[whole["command"]])
        jsonschema.validate(whole["answer"], model.model_json_schema(mode="serialization"))
    return whole


@pytest.fixture
def stored(tmp_path):
    """A root with two runs of the same files."""
    for name in ("one", "two"):
        run = tmp_path / "runs" / name
        shutil.copytree(STORED / "runs" / "stored", run, symlinks=True)
        without_gone_settings(run)
    return tmp_path


def test_the_commands_that_answer_programs():
    names = {"runs", "preflight", "evaluate", "compare", "explain", "validate"}
    assert names <= ANSWERS.keys()


def test_runs_and_compare(cli, stored):
    whole = parsed(cli("runs", "--json").out)
    assert [run["run_id"] for run in whole["answer"]["runs"]] == ["one", "two"]
    assert whole["answer"]["runs"][0]["accuracy_after"] == 0.46875
    assert (whole["exit_code"], whole["error"]) == (0, None)
    both = parsed(cli("compare", "one", "two", "--json").out)["answer"]
    assert [run["run_id"] for run in both["runs"]] == ["one", "two"]
    assert both["settings"] == []
    assert (both["pairs"][0]["won"], both["pairs"][0]["lost"]) == (0, 0)


def test_preflight_and_validate(cli):
    found = parsed(cli("preflight", "--json").out)["answer"]["findings"]
    assert {"disk", "memory"} <= {one["check"] for one in found}
    refused = parsed(cli("preflight", "--json", "model.path=/nope", code=2).out)
    assert [one["level"] for one in refused["answer"]["findings"]].count("fatal") == 1
    assert refused["error"]["message"] == "preflight found what would stop a run"
    sizes = ["data.train_size=256", "data.test_size=16"]
    words = ["validate", "preset=tinyzero-3b", "model.path=no-such/model", *sizes, "--json"]
    answer = parsed(cli(*words).out)["answer"]
    assert answer["num_checks"] > 5
    assert answer["unmeasured"].startswith("model.path=no-such/model is not")


def test_validate_answers_before_it_fails(cli, tiny_overrides):
    words = [word.replace("_length=600", "_length=128") for word in tiny_overrides]
    whole = parsed(cli("validate", *words, "--json", code=1).out)
    assert "rejected by data.max_prompt_length=128" in whole["answer"]["lengths"]
    assert {"limit": 128, "rejected": 80, "share": "100.0%"}.items() <= next(
        row for row in whole["answer"]["limits"] if row["limit"] == 128
    ).items()
    assert [one["rows"] for one in whole["answer"]["checks"] if one["status"] == "failed"]
    assert whole["error"]["key"] == "data.max_prompt_length"


def test_explain(cli):
    whole = parsed(cli("explain", "actor.lr", "preset=tinyzero-3b", "--json", root=None).out)
    (setting,) = whole["answer"]["settings"]
    assert (setting["key"], setting["allowed"]) == ("actor.lr", "a number above 0")
    assert whole["answer"]["values"] == {"actor.lr": 1e-06}
    grpo = ["algorithm.estimator=grpo", "algorithm.group_size=8"]
    idle = parsed(cli("explain", "critic.lr=0.9", *grpo, "--json", root=None).out)
    assert len(idle["answer"]["unread"]) == 1
    assert parsed(cli("explain", "quickstart", "--json", root=None).out)["answer"]["text"]


def test_evaluate(stored, capsysbinary):
    run = RunFolder(stored / "runs" / "one")
    files = [run.evaluations.folder / f"{name}.parquet" for name in ("step_000004", "base")]
    answers_of = [read_rows(file, below=run.path) for file in files]
    evaluated = Evaluated(tuple(map(summarise, answers_of)), tuple(files), compare(*answers_of))
    with only_json():
        _show_evaluated(evaluated, ["step_000004", "base"])
    answer = parsed(reply("evaluate", "Evaluate", 0, ""))["answer"]
    assert capsysbinary.readouterr().out == b""
    trained, base = answer["models"]
    assert (trained["accuracy"]["value"], base["accuracy"]["value"]) == (0.46875, 0.4375)
    assert answer["comparison"]["gain"]["value"] == pytest.approx(0.03125)
    assert answer["comparison"]["verdict"] == "cannot tell"


@pytest.mark.parametrize(
    ("words", "key", "value", "limit", "remedy"),
    [
        (["explain", "actor.lr=-1"], "actor.lr", "-1", "Input should be greater than 0", None),
        (["explain", "actor.lrr"], "actor.lrr", None, None, "did you mean actor.lr?"),
        (
            ["preflight", "preset=quikstart"],
            "preset",
            "quikstart",
            None,
            "did you mean quickstart?",
        ),
        (["runs", "status=faild"], "status", "faild", "is no status", "did you mean failed?"),
        (["runs", "--last", "0"], "--last", None, "0 must be a whole number from 1 to", None),
        (["runs", "nobody"], None, None, None, None),
        (["run"], None, None, None, None),
    ],
)
def test_errors_have_parts(cli, words, key, value, limit, remedy):
    printed = cli(*words, "--json", code=2, root=None)
    error = parsed(printed.out)["error"]
    assert (error["key"], error["value"]) == (key, value)
    assert (error["limit"] or "").startswith(limit or "")
    assert (error["remedy"] or "").startswith(remedy or "")
    assert error["message"] in printed.err


def test_the_parts_of_a_message():
    parts = facts_of("storage.root=/x:y cannot be written (no): choose another\nlog: here")
    assert parts == {
        "message": "storage.root=/x:y cannot be written (no): choose another",
        "key": "storage.root",
        "value": "/x:y",
        "limit": "cannot be written (no)",
        "remedy": "choose another",
        "detail": "log: here",
    }


def test_no_run_makes_it_invalid_and_no_secret_is_in_it(cli, stored, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-of-ours")
    file = stored / "runs" / "one" / "run.json"
    record = json.loads(file.read_text()) | {
        "reason": "a-secret-of-ours, " + HOSTILE.replace("\ud800", ""),
        "accuracy_after": 0.5,
        "started_at": "+29000-01-01T00:00:00Z",
        "authorization": None,
    }
    file.write_text(json.dumps(record))
    text = cli("runs", "one", "--json").out
    (run,) = parsed(text)["answer"]["runs"]
    assert "a-secret" not in text
    assert run["reason"].startswith('***, \x1b[31m\x9b\u202e"}]\nAAA')
    assert len(run["reason"]) <= 20_000


def test_what_is_no_json_becomes_null_or_is_escaped():
    give(settings=[], text=HOSTILE, values={"a": float("nan"), "authorization": None}, unread=[])
    whole = parsed(reply("explain", "Explain", 0, ""))
    assert whole["answer"]["values"] == {"a": None, "authorization": None}
    assert "\ud800" not in whole["answer"]["text"]


def test_only_the_object_is_on_standard_output(stored):
    """Of a process, also what its own children and C code print; with progress on stderr."""
    code = """
import logging, subprocess, sys
from flows.cli import stages, sql
from flows.cli.main import run_command
list_runs = sql.list_runs
def noisy(words, **options):
    print("python")
    subprocess.run(["echo", "child"], check=True)
    with stages._shown():
        logging.getLogger("rl_core.any").info("progress")
    list_runs(words, **options)
sql.list_runs = noisy
sys.exit(run_command(["runs", "--json", sys.argv[1]]))
"""
    done = programs.python(code, f"storage.root={stored}")
    assert done.returncode == 0, done.stderr
    assert len(parsed(done.stdout)["answer"]["runs"]) == 2
    assert "child" in done.stderr
    assert "progress" in done.stderr
    assert "python" not in done.stderr


def test_a_reader_that_is_gone_is_no_error(tmp_path):
    new_run(tmp_path, "r")
    program = f"{sys.executable} -c 'from flows.cli.main import main; main()'"
    command = f"{program} runs --json storage.root={tmp_path} | head -c 0"
    done = programs.run("bash", "-o", "pipefail", "-c", command)
    assert "Traceback" not in done.stderr
