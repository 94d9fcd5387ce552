"""Two small runs, to work out by hand: `alpha` finished, `beta` is being written."""

import csv
import shutil
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.runs.run_folder import RunFolder
from rl_core.schema import EVALUATION, RESCORES
from tasks.report_page.data import ReportData, gather
from tests.support.runs import write_rollouts

TWO_RUNS = Path(__file__).parent / "two_runs"
"""Records, metrics and manifests as they are in a storage root, and the rollouts as a table."""
HOSTILE = '</pre><script>document.title="hacked"</script><img src=x onerror="document.title=1">'
NO, WRONG, YES = "no_answer", "wrong_value", "correct"


def _turns(tokens: str) -> list[dict[str, Any]] | None:
    return [
        {"author": ("model", "env")[i % 2], "tokens": int(n), "text": f"turn {i}", "reward": i / 4}
        for i, n in enumerate(tokens.split())
    ] or None


def _rollouts() -> list[dict[str, Any]]:
    with (TWO_RUNS / "rollouts.csv").open(newline="") as file:
        told = list(csv.DictReader(file))
    counts = ("step", "group_id", "sample_index", "prompt_index", "policy_version")
    return [
        row
        | {name: int(row[name]) for name in (*counts, "response_tokens")}
        | {
            "epoch": 0,
            "data_source": "countdown",
            "prompt": f"prompt {row['prompt_index']}",
            "response": row["response"]
            or f"response {row['step']}.{row['group_id']}.{row['sample_index']}",
            "answer": row["answer"] or None,
            "score": float(row["score"]),
            "logprob_gap_mean": float(gap) if (gap := row["logprob_gap_mean"]) else None,
            "turns": _turns(row["turns"]),
            "prompt_tokens": 18,
            "generated_at": datetime(2026, 11, 20, 20, int(row["step"]), tzinfo=UTC),
        }
        for row in told
    ]


def _evaluation(model: str, step: int, mode: str, verdicts: dict[int, list[str]]) -> list[Any]:
    """Rows of one model; strictly, the third problem has no answer."""
    num_solutions = {0: 1, 1: 1, 2: 3, 3: 12}
    same = {"run_id": "alpha", "model": model, "step": step, "mode": mode, "finish_reason": "stop"}
    same |= {"data_source": "countdown", "evaluation": "whole", "num_problems": 4}
    return [
        same
        | {
            "prompt_index": prompt_index,
            "num_solutions": num_solutions[prompt_index],
            "sample_index": sample_index,
            "prompt": f"test prompt {prompt_index}",
            "response": f"{verdict} response",
            "answer": None if verdict == NO else "1 + 1",
            "verdict": verdict,
            "score": {YES: 1.0, WRONG: 0.1, NO: 0.0}[verdict],
            "response_tokens": 10 * (prompt_index + 1),
            "value": {YES: "10", WRONG: "7/2", NO: None}[verdict],
            "verdict_strict": NO if prompt_index == 2 else verdict,
            "verdict_lenient": verdict,
            "num_operands": 3 + prompt_index // 2,
            "ground_truth": '{"target": 10}',
        }
        for prompt_index, answers in verdicts.items()
        for sample_index, verdict in enumerate(answers)
    ]


def _evaluations() -> list[dict[str, Any]]:
    trained = "step_000003"
    return [
        *_evaluation("base", 0, "greedy", {0: [NO], 1: [WRONG], 2: [NO], 3: [YES]}),
        *_evaluation(trained, 3, "greedy", {0: [YES], 1: [WRONG], 2: [YES], 3: [WRONG]}),
        *_evaluation("base", 0, "sampled", {0: [WRONG] * 4, 3: [YES, WRONG, YES, NO]}),
        *_evaluation(trained, 3, "sampled", {0: [YES] * 4, 3: [WRONG, WRONG, WRONG, YES]}),
    ]


def _rescores() -> list[dict[str, Any]]:
    """As if another reward refused the first answer of step 2 and took the second."""
    place = {"run_id": "alpha", "changed": "env.x=1", "step": 2, "group_id": 0}
    return [
        place | {"sample_index": 0, "verdict": "bad_syntax", "score": 0.1},
        place | {"sample_index": 1, "verdict": YES, "score": 1.0},
    ]


def _write(file: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def _write_held_out(run: Path) -> None:
    told = ((NO, WRONG, YES), (YES, WRONG, YES), (NO, WRONG, YES), (YES, NO, WRONG))
    for step, verdicts in enumerate(told):
        model = f"step_{step:06d}" if step else "base"
        rows = _evaluation(model, step, "greedy", {i: [v] for i, v in enumerate(verdicts)})
        _write(run / "held_out" / f"step_{step:06d}.parquet", rows, EVALUATION)


def _write_two_runs(root: Path) -> Path:
    shutil.copytree(TWO_RUNS / "runs", root / "runs")
    made = {"countdown_train.seed": "7", "countdown_train.content_sha256": "abc"}
    data = pa.schema([("x", pa.int64())], metadata=made)
    _write(root / "data" / "tiny" / "test.parquet", [{"x": 1}] * 2, data)
    for (run_id, step), rows in groupby(_rollouts(), lambda row: (row["run_id"], row["step"])):
        write_rollouts(root / "runs" / run_id, rows, step)
    alpha, beta = root / "runs" / "alpha", root / "runs" / "beta"
    (beta / "rollouts" / ".tmp-step_000002.parquet").write_bytes(b"PAR1 half a file")
    _write(alpha / "eval" / "evaluation.parquet", _evaluations(), EVALUATION)
    _write(alpha / "rescored" / "one.parquet", _rescores(), RESCORES)
    (alpha / "checkpoints" / "latest").symlink_to("step_000003")
    (alpha / "checkpoints" / "best").symlink_to("step_000002")
    return root


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """A storage root with both runs."""
    return _write_two_runs(tmp_path / "outputs")


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, once for all tests that leave the runs' logs as they are."""
    return _write_two_runs(tmp_path_factory.mktemp("shared") / "outputs")


@pytest.fixture(scope="session")
def alpha_data(shared_runs: Path) -> ReportData:
    return gather(RunFolder(shared_runs / "runs" / "alpha"))


@pytest.fixture(scope="session")
def tested_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `shared_runs`, where `alpha` has also kept the answers of its tests."""
    root = _write_two_runs(tmp_path_factory.mktemp("tested") / "outputs")
    _write_held_out(root / "runs" / "alpha")
    return root
