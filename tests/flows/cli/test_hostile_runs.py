"""ATTACKS by a run's folder: what is wrong with one run stops no command of its root, nor hangs it.

Each damage lies in a run `bad` beside a whole one: the whole one is shown as ever.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.main import run_command
from tests.support.stored_run import STORED, without_gone_settings

SECRET = "sk-of-the-victim"
STRANGER = 54321
DEEP = "[" * 200_000
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
ODD_LINES = "\n".join(
    (
        '{"step": "x", "epoch": {}, "time": "never", "a": "b"}',
        f'{{"step": {"9" * 6_000}}}',
        '{"step": NaN}',
        '{"step": 1e99, "reward/accuracy": 1e999}',
        '{"reward/accuracy": 1}',
        '{"step": 1, "time": 5, "reward/accuracy": "x", "critic/score/mean": [1], "critic/kl": {}}',
        f'{{"step": 2, "a": {"[" * 5_000}{"]" * 5_000}}}',
        DEEP,
        "[1]",
    )
)
Damage = Callable[[Path, Path], object]


def text(content: str) -> Damage:
    return lambda file, victim: file.write_text(content)


def link(file: Path, victim: Path) -> None:
    file.symlink_to(victim)


def pipe(file: Path, victim: Path) -> None:
    os.mkfifo(file)


def bomb(file: Path, victim: Path) -> None:
    """Writes 16,000 times a response of 1 MB into less than a kilobyte."""
    often = pa.array([0] * 16_000, pa.int32())
    responses = pa.DictionaryArray.from_arrays(often, pa.array(["x" * 2**20]))
    table = pa.table({"step": pa.array([1] * 16_000), "response": responses})
    pq.write_table(table, file, compression="zstd")


def other_types(file: Path, victim: Path) -> None:
    pq.write_table(pa.table({"run_id": [1], "step": ["x"], "response": [[1]]}), file)


RECORD = {"preset": {}, "status": 5, "steps": "many", "started_at": "yesterday", "timings_s": [1]}
DAMAGES: dict[str, tuple[str, Damage]] = {
    "run.json, a pipe": ("run.json", pipe),
    "run.json, deep": ("run.json", text(DEEP)),
    "run.json, a link": ("run.json", link),
    "run.json, other types": ("run.json", text(json.dumps(RECORD))),
    "run.json, large": ("run.json", text("{}" + " " * 2**25)),
    "config.yaml, a pipe": ("config.yaml", pipe),
    "config.yaml, a link": ("config.yaml", link),
    "config.yaml, aliases": ("config.yaml", text(ALIASES)),
    "config.yaml, a cycle": ("config.yaml", text("a: &a [*a]\nalgorithm: &b {c: *b}\n")),
    "config.yaml, a long number": ("config.yaml", text(f"seed: {'9' * 6_000}")),
    "config.yaml, no date": ("config.yaml", text("day: 2026-99-99")),
    "config.yaml, deep": ("config.yaml", text("[" * 30_000)),
    "config.yaml, no number": ("config.yaml", text("trainer: {stop_grace_s: null}\nenv: {}\n")),
    "config.yaml, other types": ("config.yaml", text("algorithm: [1]\nbudget: x\nenv: 5\n1: 2\n")),
    "metrics.jsonl, a pipe": ("metrics.jsonl", pipe),
    "metrics.jsonl, a link": ("metrics.jsonl", link),
    "metrics.jsonl, odd lines": ("metrics.jsonl", text(ODD_LINES)),
    "log.txt, a pipe": ("log.txt", pipe),
    "log.txt, a link": ("log.txt", link),
    "sft_loss.jsonl, a pipe": ("sft_loss.jsonl", pipe),
    "rollouts, a pipe": ("rollouts/step_000001.parquet", pipe),
    "rollouts, cut": ("rollouts/step_000001.parquet", text("PAR1")),
    "rollouts, a link": ("rollouts/step_000001.parquet", link),
    "rollouts, too large": ("rollouts/step_000001.parquet", bomb),
    "rollouts, other types": ("rollouts/step_000001.parquet", other_types),
    "rollouts, a link to a folder": ("rollouts", link),
    "eval, a pipe": ("eval/base.parquet", pipe),
    "eval, too large": ("eval/base.parquet", bomb),
    "held_out, a pipe": ("held_out/step_000000.parquet", pipe),
    "rescored, cut": ("rescored/x.parquet", text("PAR1")),
    "a manifest, a pipe": ("checkpoints/step_000004/checkpoint.json", pipe),
    "a manifest, deep": ("checkpoints/step_000004/checkpoint.json", text(DEEP)),
    "checkpoints, a link": ("checkpoints", link),
}
NAMED = ("rollouts, cut", "rollouts, a link", "rollouts, too large", "eval, a pipe")
"""Of which a question in SQL says that a file is left out."""
QUESTIONS = (
    ["runs"],
    ["watch", "good"],
    ["sql", "learning_curve"],
    ["sql", "still_failing"],
    ["sql", "-q", "select run_id, count(*), sum(length(response)) from rollouts group by 1"],
    ["sql", "-q", "select count(*) from held_out, rescores"],
    ["sql", "-q", "select step, accuracy from checkpoints where run_id = 'good'"],
    ["sql", "settings_that_differ"],
    ["prune", "good", "dry_run=true"],
)
OF_BAD = (["watch", "bad"], ["prune", "bad", "dry_run=true"], ["sql", "verdict_shares", "bad"])


def many_attempts(file: Path, victim: Path) -> None:
    record = json.loads((STORED / "runs" / "stored" / "run.json").read_text())
    attempts = [{"started_at": "", "reason": "", "changes": {"actor.lr": [1, 2]}}] * 5_000
    file.write_text(json.dumps(record | {"run_id": "bad", "attempts": attempts}))


OF_AUDITS: dict[str, tuple[str, Damage]] = {
    "receipt.jsonl, a pipe": ("receipt.jsonl", pipe),
    "receipt.jsonl, odd lines": ("receipt.jsonl", text(ODD_LINES)),
    "audit.json, a link": ("audit.json", link),
    "run.json, many attempts": ("run.json", many_attempts),
}


def root_with(damage: str, folder: Path) -> tuple[Path, Path]:
    """Makes a root with runs `good` and `bad`; returns it, and the victim's file."""
    root, victim = folder / "outputs", folder / "victim"
    victim.write_text(f"{SECRET}: 1\n")
    for run in ("good", "bad"):
        shutil.copytree(STORED / "runs" / "stored", root / "runs" / run, symlinks=True)
        without_gone_settings(root / "runs" / run)
    name, do = (DAMAGES | OF_AUDITS)[damage]
    file = root / "runs" / "bad" / name
    file.parent.mkdir(exist_ok=True)
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    do(file, victim)
    return root, victim


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_stops_no_command_of_its_root(damage, tmp_path, capfd):
    root, _ = root_with(damage, tmp_path)
    codes = {}
    for words in (*QUESTIONS, *OF_BAD):
        codes[" ".join(words)] = run_command([*words, f"storage.root={root}"])
    shown = capfd.readouterr()
    assert {name: codes[name] for name in map(" ".join, QUESTIONS)} == {
        " ".join(words): 0 for words in QUESTIONS
    }, shown.err
    assert all(code in (0, 2) for code in codes.values()), shown.err
    assert "good" in shown.out
    assert not {"Traceback", "pydantic"} & set(re.findall(r"\w+", shown.err))
    assert SECRET not in shown.out + shown.err
    if damage in NAMED:
        assert f"{root / 'runs' / 'bad' / DAMAGES[damage][0]}" in shown.err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", [*DAMAGES, *OF_AUDITS])
def test_an_audit_of_it_ends(damage, tmp_path, capfd):
    root, victim = root_with(damage, tmp_path)
    assert run_command(["audit", "bad", f"storage.root={root}"]) in (1, 2)
    shown = capfd.readouterr()
    assert "Error" not in shown.err
    audit = root / "runs" / "bad" / "audit.json"
    assert SECRET not in shown.out + (audit.read_text() if audit.is_file() else "")
    assert victim.read_text() == f"{SECRET}: 1\n"


@pytest.mark.parametrize("damage", ["config.yaml, a link", "log.txt, a link"])
def test_a_report_of_a_strangers_run_holds_no_file_of_ours(damage, tmp_path):
    root, victim = root_with(damage, tmp_path)
    if damage == "log.txt, a link":
        victim.write_text(f"2026-11-25T15:46:00Z WARNING rl_core.any: {SECRET}\n")
    run = root / "runs" / "bad"
    assert run_command(["report", "bad", f"storage.root={root}"]) == 0
    assert SECRET not in (run / "report.html").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_not_even_by_a_hard_link(tmp_path):
    root, victim = root_with("config.yaml, a link", tmp_path)
    run = root / "runs" / "bad"
    (run / "config.yaml").unlink()
    os.link(victim, run / "config.yaml")
    for folder, _, files in os.walk(run):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if path != run / "config.yaml":
                os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    assert run_command(["report", "bad", f"storage.root={root}"]) == 0
    page = (run / "report.html").read_text()
    assert SECRET not in page
    assert "step_000004" in page, "the stranger's own files are read"


def test_a_run_that_its_owner_reads_through_links_is_a_run(tmp_path, capfd):
    """The root and the run's folder may be links; only what lies in the run may not."""
    shutil.copytree(STORED / "runs" / "stored", tmp_path / "disk" / "r", symlinks=True)
    newest = tmp_path / "disk" / "r" / "checkpoints" / "latest"
    newest.unlink()
    newest.symlink_to("step_000004")
    (tmp_path / "outputs" / "runs").mkdir(parents=True)
    (tmp_path / "outputs" / "runs" / "r").symlink_to(tmp_path / "disk" / "r")
    (tmp_path / "link").symlink_to(tmp_path / "outputs")
    root = f"storage.root={tmp_path / 'link'}"
    assert (
        run_command(["sql", "-q", "select count(*) as n, run_id from rollouts group by 2", root])
        == 0
    )
    assert run_command(["sql", "-q", "select is_latest as newest from checkpoints", root]) == 0
    said = capfd.readouterr().out
    assert "128" in said
    assert "True" in said


BAD_PRESETS = {
    "aliases": ALIASES,
    "a cycle": "a: &a [*a]\n",
    "a long number": f"seed: {'9' * 6_000}\n",
    "a larger number": f"seed: {'9' * 30}\n",
    "no date": "trainer:\n  total_steps: 2026-99-99\n",
    "a date": "trainer:\n  total_steps: 2026-11-28\n",
    "deep": "[" * 30_000,
    "a tag": "seed: !!python/object/apply:os.getpid []\n",
    "a key that is a list": "? [a]\n: 1\n",
    "keys that are numbers": "1: 2\n",
    "two documents": "seed: 1\n---\nseed: 2\n",
}


@pytest.mark.parametrize("kind", [*BAD_PRESETS, "a pipe"])
def test_a_preset_that_cannot_be_read_is_one_line(kind, tmp_path, capfd):
    file = tmp_path / "p.yaml"
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.write_text(BAD_PRESETS[kind])
    assert run_command(["config", f"preset={file}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert len(line) < 500
