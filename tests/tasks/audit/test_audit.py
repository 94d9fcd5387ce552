"""A real run whose receipt holds, and copies of it in each of which one thing was changed."""

import inspect
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core import train
from rl_core.checkpoints.manifest import write_manifest
from rl_core.rollout.hf_engine import HfEngine
from rl_core.runs.receipt import AuditLine
from rl_core.runs.run_folder import RunFolder
from tasks.audit.facts import ranges
from tasks.audit.receipt import audit_run, is_green
from tests.support import programs
from tests.support.programs import own_prefect
from tests.support.runs import short
from tests.support.stored_run import STORED

SETTINGS = {
    "env.prompt_template": "base",
    "env.format_score": 0.1,
    "model.dtype": "float32",
    "data.max_prompt_length": 512,
    "data.max_response_length": 6,
    "data.train_batch_size": 4,
    "actor.mini_batch_size": 4,
    "actor.lr": 1e-2,
    "algorithm.group_size": 2,
    "trainer.save_freq": 2,
    "trainer.test_freq": 2,
    "storage.min_free_gib": 0,
}
PROBLEMS = [{"prompt": f"Say {i}, {'abcdefgh'[i % 8]}", "answer": str(i)} for i in range(14)]


def letters(response: str) -> float:
    return sum(c.isalpha() for c in response) / 6


def trained(
    root: Path,
    model: Path,
    steps: int,
    reward: Callable[[str], float] | str | None = None,
    **settings: object,
) -> RunFolder:
    given = {"problems": PROBLEMS, "settings": SETTINGS | settings, "root": root, "run_id": "one"}
    train(model=model, steps=steps, reward=reward, **given)
    return RunFolder(root / "runs" / "one")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> RunFolder:
    """A run of six steps in two attempts."""
    root = tmp_path_factory.mktemp("whole")
    trained(root, tiny_model_path, 4)
    return trained(root, tiny_model_path, 6)


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it, to be tampered with."""
    shutil.copytree(whole.root, tmp_path / "copy", symlinks=True)
    return RunFolder(tmp_path / "copy" / "runs" / "one")


def receipt(run: RunFolder) -> dict[str, AuditLine]:
    return {line.subject: line for line in audit_run(run)}


def test_a_run_in_two_attempts_agrees_with_itself(whole):
    lines = receipt(whole)
    outcomes = {subject: line.outcome for subject, line in lines.items()}
    assert outcomes.pop("evaluations") == outcomes.pop("attempts") == "note"
    assert set(outcomes.values()) == {"holds"}, lines
    assert "trainer.total_steps=6" in lines["attempts"].words
    assert lines["metrics"].words == (
        "metrics.jsonl has steps 0 to 6, each once and in order; 2 attempts began after steps 0, 4"
    )
    assert lines["rollouts"].words.startswith("48 rows of steps 1 to 6, each once; 6 of 6 files")
    assert lines["weights"].words.startswith("the weights of 7 syncs of engines are the learner's")
    assert "checkpoints of steps 2, 4, 6" in lines["checkpoints"].words


KINDS = {
    "adapters": {"model.lora_rank": 2},
    "a teacher": {"algorithm.estimator": "distill", "teacher.path": "MODEL"},
    "replaced groups": {"algorithm.resample_rounds": 2, "algorithm.outcome_gate": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_run_is_green(kind, tmp_path, tiny_model_path, monkeypatch):
    (tmp_path / "mine.py").write_text(inspect.getsource(letters))
    monkeypatch.chdir(tmp_path)
    settings = {
        key: str(tiny_model_path) if value == "MODEL" else value
        for key, value in KINDS[kind].items()
    }
    reward = "mine:letters" if kind == "replaced groups" else None
    run = trained(tmp_path, tiny_model_path, 2, reward, **settings)
    lines = {line.subject: line for line in audit_run(run, [str(reward)])}
    assert is_green([*lines.values()]), lines
    assert lines["rewards"].words.startswith("16 logged responses")
    assert ("resample_rounds" in lines["metrics of rollouts"].words) == (reward is not None)
    unnamed = {line.subject for line in audit_run(run) if line.outcome == "unknown"}
    assert unnamed == ({"rewards"} if reward else set())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_adapters_of_two_ranks_after_sft_are_green(tmp_path, tiny_overrides):
    """The whole pipeline, with an evaluation."""
    command = str(Path(sys.executable).with_name("countdown-train"))
    settings = short(tiny_overrides, total_steps=3, test_freq=2, save_freq=2)
    settings = [words.replace("_response_length=24", "_response_length=120") for words in settings]
    settings += ["model.lora_rank=2", "sft.data=traces", "sft.steps=5", "sft.batch_size=4"]
    settings += ["resources.learner_ranks=2", f"storage.root={tmp_path}", "run_id=one"]
    home = own_prefect(tmp_path / "prefect")
    done = programs.run(command, "run", *settings, env=home, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = receipt(RunFolder(tmp_path / "runs" / "one"))
    assert {line.outcome for line in lines.values()} == {"holds"}, lines
    assert lines["weights"].words.startswith("the weights of 4 syncs")
    assert lines["rewards of evaluations"].words.startswith("96 answers")


def rows_of(run: RunFolder, step: int, change: Callable[[list[dict[str, object]]], object]) -> None:
    file = run.path / "rollouts" / f"step_{step:06d}.parquet"
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


def lines_of(name: str, change: Callable[[list[str]], object]) -> Callable[[RunFolder], object]:
    def edit(run: RunFolder) -> None:
        file = run.path / name
        lines = file.read_text().splitlines(keepends=True)
        change(lines)
        file.write_text("".join(lines))

    return edit


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def swap_steps(folder: str, ending: str = "") -> Callable[[RunFolder], object]:
    return lambda run: swap(*(run.path / folder / f"step_{step:06d}{ending}" for step in (2, 4)))


def far_step(run: RunFolder) -> None:
    """A step to which nothing may count up."""
    rows_of(run, 6, lambda rows: [row.update(step=10**15) for row in rows])
    file = run.path / "rollouts" / "step_000006.parquet"
    file.rename(file.with_name(f"step_{10**15}.parquet"))


def odd_share(run: RunFolder) -> None:
    """A share of replaced groups that is no number, which would excuse another problem."""
    lines_of(
        "metrics.jsonl", lambda lines: lines.append('{"step": 7, "group/replaced_frac": "1"}')
    )(run)
    shutil.copy(
        run.path / "rollouts/step_000003.parquet", run.path / "rollouts/step_000007.parquet"
    )
    rows_of(run, 7, lambda rows: [row.update(step=7) for row in rows])


def other_model(run: RunFolder) -> None:
    """A checkpoint with other weights, whose manifest fits them."""
    folder = run.path / "checkpoints" / "step_000004"
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    (folder / "checkpoint.json").unlink()
    write_manifest(folder, 4, None)


def other_data(run: RunFolder) -> None:
    record = json.loads((run.path / "run.json").read_text())
    file = Path(record["data"]) / "test.parquet"
    copy = run.root / "data" / "copied"
    shutil.copytree(file.parent, copy)
    shutil.copy(copy / "train.parquet", copy / "test.parquet")
    run.update(data=str(copy))


TAMPERED = {
    "a score": (
        lambda run: rows_of(run, 3, lambda rows: rows[5].update(score=1.0)),
        ("rewards", "step 3: response 1 of group 2: score is 1.0, and its response gets 0"),
        ("rollouts", "step_000003.parquet is not the file that was written (sha256)"),
        ("metrics of rollouts", "step 3: critic/score/mean is 0.0 in the metrics, 0.125"),
    ),
    "a verdict": (
        lambda run: rows_of(run, 3, lambda rows: rows[0].update(verdict="correct")),
        ("rewards", "verdict is 'correct', and its response gets 'no_answer'"),
    ),
    "a row that agrees with all else": (
        lambda run: rows_of(run, 3, lambda rows: rows[0].update(response="other")),
        ("rollouts", "step_000003.parquet is not the file that was written (sha256)"),
    ),
    "another problem": (
        lambda run: rows_of(run, 3, lambda rows: rows[0].update(prompt_index=99)),
        ("rewards", "the data set has no problem 99"),
        ("problems", "step 3: 1 of 4 problems are not those of seed=0: group 0 is problem 99"),
    ),
    "another truth": (
        lambda run: rows_of(run, 3, lambda rows: rows[0].update(truth='"x"')),
        ("rewards", "step 3: response 0 of group 0: its truth is not that of problem"),
    ),
    "a stale token": (
        lambda run: rows_of(run, 3, lambda rows: rows[7].update(policy_version=1)),
        ("staleness", "step 3: tokens of policy 1, 1 updates old"),
    ),
    "a row less": (
        lambda run: rows_of(run, 3, lambda rows: rows.pop(2)),
        ("rollouts", "step 3: row 3 is response 1 of group 1, where response 0 of group 1 must be"),
    ),
    "a step's metrics dropped": (
        lines_of("metrics.jsonl", lambda lines: lines.pop(3)),
        ("metrics", "step 3 is missing"),
    ),
    "metrics twice": (
        lines_of("metrics.jsonl", lambda lines: lines.append(lines[-1])),
        ("metrics", "step 6 is there twice"),
    ),
    "metrics re-ordered": (
        lines_of("metrics.jsonl", lambda lines: lines.insert(1, lines.pop(4))),
        ("metrics", "step 1 comes after a later one"),
    ),
    "a step's rollouts dropped": (
        lambda run: (run.path / "rollouts" / "step_000003.parquet").unlink(),
        ("rollouts", "no rollouts: step 3 is missing"),
    ),
    "the first rollouts dropped": (
        lambda run: (run.path / "rollouts" / "step_000001.parquet").unlink(),
        ("rollouts", "no rollouts: step 1 is missing"),
    ),
    "a far step": (far_step, ("rollouts", "no rollouts: step 6 is missing")),
    "a share of replaced groups": (
        odd_share,
        ("problems", "step 7: 4 of 4 problems are not those"),
    ),
    "rollouts re-ordered": (
        swap_steps("rollouts", ".parquet"),
        ("rollouts", "step_000002.parquet holds rows of step 4"),
    ),
    "checkpoints swapped": (
        swap_steps("checkpoints"),
        ("checkpoints", "step_000002 holds the checkpoint of step 4"),
    ),
    "a checkpoint with another model": (
        other_model,
        ("checkpoints", "step_000004 is not the checkpoint that was saved"),
    ),
    "a checkpoint damaged": (
        lambda run: (run.path / "checkpoints/step_000004/config.json").write_text("{}"),
        ("checkpoints", "step_000004: config.json has 2 bytes instead of"),
    ),
    "renamed": (
        lambda run: run.path.rename(run.path.with_name("two")),
        ("names", "run.json is of run 'one': it was renamed or copied; a file of rows is of run"),
    ),
    "trained on the tests": (
        other_data,
        ("held out", "test problem 0 is training problem 0; test problem 1 is training problem 1"),
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_changed_is_named(run, name):
    change, *places = TAMPERED[name]
    change(run)
    if not run.path.exists():
        run = RunFolder(run.path.with_name("two"))
    lines = receipt(run)
    for subject, words in places:
        assert (lines[subject].outcome, words in lines[subject].words) == ("FAILS", True), lines


def test_an_engine_that_keeps_old_weights_is_named(tmp_path, tiny_model_path, monkeypatch):
    update = HfEngine.update_weights

    def forget(engine: HfEngine, weights: dict[str, object]) -> None:
        kept = {name: tensor.clone() for name, tensor in (taken or weights).items()}
        taken.update(kept)
        update(engine, kept)

    taken: dict[str, object] = {}
    monkeypatch.setattr(HfEngine, "update_weights", forget)
    learns = {"algorithm.outcome_gate": False}
    run = trained(tmp_path, tiny_model_path, 2, letters, **learns)
    line = receipt(run)["weights"]
    assert line.outcome == "FAILS"
    assert "engine_0 held weights" in line.words
    assert "after update 1, and the learner" in line.words


def test_the_command_says_all_and_keeps_it(cli, whole):
    printed = cli("audit", "one", root=whole.root)
    assert "holds    rollouts                48 rows of steps 1 to 6" in printed.out
    answer = json.loads(cli("audit", "one", "--json", root=whole.root).out)["answer"]
    assert answer == {"run_id": "one", "lines": [asdict(line) for line in audit_run(whole)]}
    kept = whole.receipt.last_audit(6)
    assert kept is not None
    assert [line.subject for line in kept[1]] == [line.subject for line in audit_run(whole)]
    assert whole.receipt.last_audit(7) is None
    assert "actor.lr" in cli("audit", "one", "actor.lr=1", root=whole.root, code=2).err


def test_a_run_of_an_older_version_says_what_cannot_be_checked(cli, tmp_path):
    shutil.copytree(STORED, tmp_path / "old", symlinks=True)
    printed = cli("audit", "latest", root=tmp_path / "old", code=1)
    assert "FAILS" not in printed.out
    assert "0 checks of 14 failed for run stored, and " in printed.err
    assert "an older version wrote no receipt.jsonl" in printed.out


def test_ranges_of_steps():
    assert ranges([3, 1, 2, 7, 9, 10]) == "1 to 3, 7, 9 to 10"
