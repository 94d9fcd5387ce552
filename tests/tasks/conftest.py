"""Two small run folders, to work out by hand: one finished, one being written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.schema import EVALUATION, RESCORES, ROLLOUTS

HOSTILE = '</pre><script>document.title="hacked"</script><img src=x onerror="document.title=1">'


def _rollout(
    run_id: str,
    step: int,
    place: tuple[int, int, int],
    verdict: str,
    score: float,
    tokens: int,
    **extra: Any,
) -> dict[str, Any]:
    group_id, sample_index, prompt_index = place
    return {
        "run_id": run_id,
        "step": step,
        "epoch": 0,
        "prompt_index": prompt_index,
        "data_source": "countdown",
        "group_id": group_id,
        "sample_index": sample_index,
        "policy_version": step - 1,
        "prompt": f"prompt {prompt_index}",
        "response": f"response {step}.{group_id}.{sample_index}",
        "verdict": verdict,
        "score": score,
        "prompt_tokens": 18,
        "response_tokens": tokens,
        "finish_reason": "stop",
        "generated_at": datetime(2026, 11, 20, 20, step, tzinfo=UTC),
    } | extra


def _turns(*tokens: int) -> list[dict[str, Any]]:
    return [
        {"author": ("model", "env")[i % 2], "tokens": n, "text": f"turn {i}", "reward": i / 4}
        for i, n in enumerate(tokens)
    ]


def _alpha_rollouts() -> list[dict[str, Any]]:
    a = "alpha"
    return [
        _rollout(a, 1, (0, 0, 7), "no_answer", 0.0, 10, logprob_gap_mean=0.001),
        _rollout(a, 1, (0, 1, 7), "wrong_value", 0.1, 20, logprob_gap_mean=0.002),
        _rollout(
            a, 1, (1, 0, 9), "bad_syntax", 0.1, 30, logprob_gap_mean=0.003, finish_reason="length"
        ),
        _rollout(
            a, 1, (1, 1, 9), "no_answer", 0.0, 40, logprob_gap_mean=0.002, finish_reason="length"
        ),
        _rollout(a, 2, (0, 0, 7), "correct", 1.0, 12, logprob_gap_mean=0.02, answer="1 + 2"),
        _rollout(a, 2, (0, 1, 7), "wrong_value", 0.1, 16, logprob_gap_mean=0.0, response=HOSTILE),
        _rollout(a, 2, (1, 0, 5), "correct", 1.0, 8, logprob_gap_mean=0.0, answer="3 * 4"),
        _rollout(a, 2, (1, 1, 5), "correct", 1.0, 4, logprob_gap_mean=0.0, answer="4 * 3"),
        _rollout(a, 3, (0, 0, 9), "wrong_value", 0.1, 22, turns=_turns(5, 4, 5, 3, 5)),
        _rollout(a, 3, (0, 1, 9), "wrong_value", 0.1, 18),
        _rollout(a, 3, (1, 0, 5), "correct", 1.0, 6, answer="3 * 4", turns=_turns(2, 1, 3)),
        _rollout(a, 3, (1, 1, 5), "no_answer", 0.0, 64, finish_reason="length", policy_version=1),
    ]


def _evaluation(model: str, step: int, mode: str, verdicts: dict[int, list[str]]) -> list[Any]:
    """Rows of one model; strictly, the third problem has no answer."""
    num_solutions = {0: 1, 1: 1, 2: 3, 3: 12}
    values = {"correct": "10", "wrong_value": "7/2", "no_answer": None}
    scores = {"correct": 1.0, "wrong_value": 0.1, "no_answer": 0.0}
    return [
        {
            "run_id": "alpha",
            "model": model,
            "step": step,
            "prompt_index": prompt_index,
            "data_source": "countdown",
            "num_solutions": num_solutions[prompt_index],
            "mode": mode,
            "sample_index": sample_index,
            "prompt": f"test prompt {prompt_index}",
            "response": f"{verdict} response",
            "answer": None if verdict == "no_answer" else "1 + 1",
            "verdict": verdict,
            "score": scores[verdict],
            "response_tokens": 10 * (prompt_index + 1),
            "finish_reason": "stop",
            "value": values[verdict],
            "verdict_strict": "no_answer" if prompt_index == 2 else verdict,
            "verdict_lenient": verdict,
            "num_operands": 3 + prompt_index // 2,
            "ground_truth": '{"target": 10}',
            "evaluation": "whole",
            "num_problems": 4,
        }
        for prompt_index, answers in verdicts.items()
        for sample_index, verdict in enumerate(answers)
    ]


def _alpha_evaluations() -> list[dict[str, Any]]:
    yes, no, none = "correct", "wrong_value", "no_answer"
    trained = "step_000003"
    return [
        *_evaluation("base", 0, "greedy", {0: [none], 1: [no], 2: [none], 3: [yes]}),
        *_evaluation(trained, 3, "greedy", {0: [yes], 1: [no], 2: [yes], 3: [no]}),
        *_evaluation("base", 0, "sampled", {0: [no] * 4, 3: [yes, no, yes, none]}),
        *_evaluation(trained, 3, "sampled", {0: [yes] * 4, 3: [no, no, no, yes]}),
    ]


_HELD_OUT = (
    ("no_answer", "wrong_value", "correct"),
    ("correct", "wrong_value", "correct"),
    ("no_answer", "wrong_value", "correct"),
    ("correct", "no_answer", "wrong_value"),
)
"""Of alpha: verdicts of the first three problems at steps 0 to 3."""


def _alpha_rescores() -> list[dict[str, Any]]:
    """As if another reward refused the first answer of step 2 and took the second."""
    place = {"run_id": "alpha", "changed": "env.x=1", "step": 2, "group_id": 0}
    return [
        place | {"sample_index": 0, "verdict": "bad_syntax", "score": 0.1},
        place | {"sample_index": 1, "verdict": "correct", "score": 1.0},
    ]


def _write(file: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def _metrics(step: int, **values: float | None) -> str:
    names = {
        "score": "critic/score/mean",
        "accuracy": "reward/accuracy",
        "test": "val/accuracy",
        "tokens": "response_length/mean",
        "kl": "critic/kl",
        "speed": "rollout/tokens_per_s",
        "gen": "timing_s/gen",
        "update": "timing_s/update_actor",
        "total": "timing_s/step",
        "memory": "memory/peak_gib/update_actor",
        "norm": "actor/grad_norm",
    }
    line = {"step": step, "epoch": 0, "time": f"2026-11-20T20:0{step}:00.000+00:00"}
    return json.dumps(line | {names[name]: value for name, value in values.items()}) + "\n"


def _checkpoint(run: Path, step: int, accuracy: float | None, total_bytes: int) -> None:
    folder = run / "checkpoints" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    manifest = {"step": step, "accuracy": accuracy, "total_bytes": total_bytes, "files": []}
    (folder / "checkpoint.json").write_text(json.dumps(manifest, indent=2))


def _write_alpha(run: Path) -> None:
    rows = _alpha_rollouts()
    for step in (1, 2, 3):
        of_step = [row for row in rows if row["step"] == step]
        _write(run / "rollouts" / f"step_{step:06d}.parquet", of_step, ROLLOUTS)
    _write(run / "eval" / "evaluation.parquet", _alpha_evaluations(), EVALUATION)
    _write(run / "rescored" / "one.parquet", _alpha_rescores(), RESCORES)
    (run / "metrics.jsonl").write_text(
        _metrics(0, test=0.25)
        + _metrics(
            1,
            score=0.05,
            accuracy=0.0,
            tokens=25.0,
            speed=100.0,
            gen=1.0,
            total=3.0,
            memory=1.5,
            norm=1.0,
        )
        + _metrics(2, score=0.5, accuracy=0.5, tokens=99.0)  # lost in a crash, then redone:
        + _metrics(
            2,
            score=0.775,
            accuracy=0.75,
            tokens=10.0,
            speed=200.0,
            gen=2.0,
            update=1.0,
            memory=2.5,
            norm=1.0,
        )
        + _metrics(
            3,
            score=0.3,
            accuracy=0.25,
            test=0.5,
            kl=None,
            gen=3.0,
            update=2.0,
            total=6.0,
            memory=2.0,
            norm=9.0,
        )
    )
    _checkpoint(run, 2, 0.5, 100)
    _checkpoint(run, 3, 0.5, 300)
    _checkpoint(run, 1, None, 200)
    (run / "checkpoints" / "latest").symlink_to("step_000003")
    (run / "checkpoints" / "best").symlink_to("step_000002")
    record = {
        "run_id": "alpha",
        "preset": "quickstart",
        "status": "finished",
        "steps": 3,
        "accuracy_before": 0.25,
        "accuracy_after": 0.5,
        "champion": "promoted: better than its base model (p = 0.01)",
        "night": "2026-11-20T20:00:00+00:00",
        "started_from": "afresh: no champion of countdown yet",
        "reason": None,
        "started_at": "2026-11-20T20:00:00.000+00:00",
        "finished_at": "2026-11-20T20:10:30.000+00:00",
        "timings_s": {"generate": 60.0, "train": 180.0, "evaluate": 60.0},
        "attempts": [{"started_at": "2026-11-20T20:00:00.000+00:00", "reason": "started"}],
    }
    (run / "run.json").write_text(json.dumps(record))
    (run / "config.yaml").write_text("seed: 0\nactor:\n  lr: 0.0001\n")


def _write_beta(run: Path) -> None:
    rows = [_rollout("beta", 1, (0, 0, 7), "wrong_value", 0.1, 50)]
    _write(run / "rollouts" / "step_000001.parquet", rows, ROLLOUTS)
    (run / "rollouts" / ".tmp-step_000002.parquet").write_bytes(b"PAR1 half a file")
    half_a_line = _metrics(2, score=0.9)[:30]
    (run / "metrics.jsonl").write_text(
        _metrics(0, test=0.125) + _metrics(1, score=0.1, accuracy=0.0) + half_a_line
    )
    (run / "config.yaml").write_text("seed: 1\nactor:\n  lr: 0.0001\n")
    record = {
        "run_id": "beta",
        "preset": "quickstart",
        "status": "running",
        "steps": 0,
        "started_at": "2026-11-20T20:00:30.000+00:00",
    }
    (run / "run.json").write_text(json.dumps(record))


def _write_held_out(run: Path) -> None:
    for step, verdicts in enumerate(_HELD_OUT):
        model = f"step_{step:06d}" if step else "base"
        rows = _evaluation(model, step, "greedy", {i: [v] for i, v in enumerate(verdicts)})
        _write(run / "held_out" / f"step_{step:06d}.parquet", rows, EVALUATION)


def _schema_with(metadata: dict[str, str]) -> pa.Schema:
    return pa.schema([("x", pa.int64())], metadata=metadata)


def _write_two_runs(root: Path) -> Path:
    made = {"countdown_train.seed": "7", "countdown_train.content_sha256": "abc"}
    _write(root / "data" / "tiny" / "test.parquet", [{"x": 1}] * 2, _schema_with(made))
    for name, write in (("alpha", _write_alpha), ("beta", _write_beta)):
        run = root / "runs" / name
        run.mkdir(parents=True)
        write(run)
    return root


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """A storage root with the finished run `alpha` and the run `beta`, which is being written."""
    return _write_two_runs(tmp_path / "outputs")


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, once for all tests that leave the runs' logs as they are."""
    return _write_two_runs(tmp_path_factory.mktemp("shared") / "outputs")


@pytest.fixture(scope="session")
def tested_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `shared_runs`, where `alpha` has also kept the answers of its tests."""
    root = _write_two_runs(tmp_path_factory.mktemp("tested") / "outputs")
    _write_held_out(root / "runs" / "alpha")
    return root
