"""What an import loads is a promise: envs and settings stay light, commands answer at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.sft.train import train_tokenizer
from tests.support.programs import python

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "vllm", "ray", "prefect", "wandb", "duckdb", "hydra", "polars")


def loaded_by(code: str) -> set[str]:
    """The heavy packages in `sys.modules` after `code`, in a fresh interpreter."""
    report = f"\nimport sys; print('LOADED', *(m for m in {HEAVY!r} if m in sys.modules))"
    done = python(code + report, cwd=ROOT, more={"PYTHONPATH": str(ROOT)}, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


LIGHT = (
    *("rl_core.config.run", "rl_core.types", "rl_core.schema", "rl_core.errors"),
    *("rl_core.envs.countdown", "rl_core.envs.gsm8k"),
    *("rl_core.runs.run_folder", "rl_core.checkpoints.store"),
)
HELP = "from flows.cli.main import run_command\ntry: run_command(['-h'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (f"import {', '.join(LIGHT)}", set()),
        (HELP, set()),
        ("from flows.cli.commands import suggestions; list(suggestions('run', ''))", set()),
        ("from flows.settings.compose import compose; compose(['seed=1'])", {"hydra"}),
        ("import rl_core.algos.advantages, rl_core.algos.losses", set()),  # the settings' tables
    ],
    ids=["light modules", "help", "a TAB", "settings", "algorithms"],
)
def test_what_is_light_loads_nothing_else_that_is_heavy(code, heavy):
    assert loaded_by(code) == heavy


def test_the_processes_around_the_models_have_no_torch():
    # The flow's, the trainer's and the evaluator's: 200 MB and 3 s of CPU time each.
    assert "torch" not in loaded_by("import flows.countdown_train, tasks.train, tasks.evaluate")


@pytest.mark.parametrize(
    ("commands", "allowed"),
    [
        ([["config"]], {"hydra"}),
        ([["sql", "--list"], ["sql", "runs_overview"], ["runs"]], {"polars", "duckdb"}),
        ([["preflight"]], {"hydra", "prefect", "polars"}),
    ],
)
def test_quick_commands_load_no_engine(commands, allowed, tmp_path):
    calls = [f"run_command({[*words, f'storage.root={tmp_path}']!r})" for words in commands]
    assert loaded_by("; ".join(["from flows.cli.main import run_command", *calls])) <= allowed


@pytest.mark.parametrize(
    ("arguments", "bar_s"), [(["--help"], 0.5), (["sql", "runs_overview"], 1.5)]
)
def test_quick_commands_take_little_cpu(arguments, bar_s, tmp_path):
    """CPU seconds, of the best of three tries: a neighbour on the same core makes each longer."""

    def cpu_s() -> float:
        command = [sys.executable, "-c", "from flows.cli.main import main; main()", *arguments]
        started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        assert started.returncode == 0
        return used.ru_utime + used.ru_stime

    assert any(cpu_s() < bar_s for _ in range(3))


@pytest.mark.parametrize(
    ("entry", "lora_rank", "heavy"),
    [("auto_map", 4, set()), ("unread", 0, set()), ("unread", 4, {"torch"})],  # adapters are merged
    ids=["home-made tokenizer", "AutoTokenizer's", "AutoTokenizer's where a model is loaded"],
)
def test_a_trainer_without_a_model_has_no_torch(tmp_path, entry, lora_rank, heavy):
    train_tokenizer(["1 + 2 = 3 yes"], vocab_size=300).save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("auto_map", entry))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    code = f"""from contextlib import suppress
from rl_core.config.run import RunConfig
from tasks.supervision.trainer_process import train_for_parent
config = RunConfig.model_validate({{"model": {{"lora_rank": {lora_rank}}}}})
with suppress(AttributeError):  # there is no run
    train_for_parent(None, config=config, **dict.fromkeys(("run", "data", "model_path", "start")))
from rl_core.data.prompts import load_tokenizer
load_tokenizer({str(tmp_path)!r})"""
    assert loaded_by(code) == {"transformers", *heavy}


def test_no_module_is_looked_for_in_the_working_folder(tmp_path):
    # A relative name in sys.path is a folder, or a zip archive, of the working folder.
    done = python("import sys; print(*sys.path)", cwd=tmp_path, more={"PYTHONSAFEPATH": "1"})
    assert [place for place in done.stdout.split() if not place.startswith("/")] == []
