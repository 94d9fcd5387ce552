import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from rl_core.config.operations import EvaluationConfig, StorageConfig
from rl_core.config.run import ModelConfig, RunConfig
from rl_core.runs.metrics_log import MetricsLog
from rl_core.runs.rollout_log import RolloutLog
from rl_core.runs.run_folder import RunFolder
from rl_core.schema import ROLLOUTS
from rl_core.types import Completion, Problem, ScoredText
from tests.support.faults import found_after_kills


def config_in(root: Path, **changes: Any) -> RunConfig:
    return RunConfig(run_id="my-run", storage=StorageConfig(root=root), **changes)


def test_a_new_run_has_a_record_and_its_settings(tmp_path):
    run = RunFolder.create(config_in(tmp_path, seed=3))
    assert run.path == tmp_path / "runs" / "my-run"
    record = json.loads((run.path / "run.json").read_text())
    started_at, made_with = record.pop("started_at"), record.pop("made_with")
    assert made_with["torch"] == version("torch")
    assert datetime.fromisoformat(started_at).utcoffset() == timedelta(0)
    first = {"started_at": started_at, "reason": "started", "made_with": made_with}
    assert {name: value for name, value in record.items() if value} == {
        "run_id": "my-run",
        "preset": "quickstart",
        "status": "running",
        "attempts": [first | {"from_step": 0, "changes": {}, "overrides": "", "startup_s": {}}],
    }
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    assert RunConfig.model_validate(settings) == config_in(tmp_path, seed=3)
    assert (run.path / "run.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("status", "reason", "why"),
    [
        ("interrupted", "SIGTERM; the same command resumes", "continued after: SIGTERM"),
        ("failed", "ValueError: no such file", "continued after: ValueError: no such file"),
        ("finished", None, "continued"),
    ],
)
def test_a_continued_run_keeps_its_record_and_counts_the_attempt(tmp_path, status, reason, why):
    run = RunFolder.create(config_in(tmp_path))
    run.update(status=status, reason=reason, steps=7, accuracy_before=0.25)
    first = run.read()
    record = RunFolder.create(config_in(tmp_path, seed=9)).read()
    assert (record.status, record.reason, record.finished_at) == ("running", None, None)
    assert (record.steps, record.accuracy_before) == (7, 0.25)
    assert record.started_at == first.started_at
    assert [attempt.reason for attempt in record.attempts] == ["started", why]
    assert yaml.safe_load((run.path / "config.yaml").read_text())["seed"] == 9


def test_settings_that_a_run_was_continued_with_do_not_hide_those_before(tmp_path):
    run = RunFolder.create(config_in(tmp_path))
    for seed in (0, 9, 9, 3):
        RunFolder.create(config_in(tmp_path, seed=seed))
    seeds = {f.name: yaml.safe_load(f.read_text())["seed"] for f in run.path.glob("config*")}
    before = {"config_before_attempt_3.yaml": 0, "config_before_attempt_5.yaml": 9}
    assert seeds == {"config.yaml": 3} | before
    asked = [attempt.overrides for attempt in run.read().attempts]
    assert asked == ["", "", "seed=9", "", "seed=3"]


def test_what_a_person_changed_is_told_as_one_would_type_it(tmp_path):
    run = RunFolder.create(config_in(tmp_path))
    named = config_in(tmp_path, model=ModelConfig(path="a/b", gradient_checkpointing=True))
    RunFolder.create(named)
    RunFolder.create(config_in(tmp_path))
    assert [attempt.overrides for attempt in run.read().attempts[1:]] == [
        "model.path=a/b model.gradient_checkpointing=true",
        "model.path=null model.gradient_checkpointing=false",
    ]
    (run.path / "config.yaml").write_text("seed: [")
    RunFolder.create(named)
    assert run.read().attempts[-1].overrides == "", "damaged settings name no change"


def test_a_run_keeps_the_decoding_of_its_tests(tmp_path):
    run = RunFolder.create(config_in(tmp_path))
    hot = config_in(tmp_path, evaluation=EvaluationConfig(temperature=0.5))
    sampled = config_in(tmp_path, evaluation=EvaluationConfig(decoding="sampled"))
    RunFolder.create(sampled)  # it has no best yet
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "best").symlink_to("step_000001")
    with pytest.raises(ValueError, match=r"count mean of 4 samples, temperature 1, .* greedy:"):
        RunFolder.create(hot)
    RunFolder.create(sampled)


def test_updates_are_checked_and_timings_add_up(tmp_path):
    run = RunFolder.create(config_in(tmp_path))
    run.update(timings_s={"generate": 1.5})
    run.update(timings_s={"train": 2.0})
    assert run.read().timings_s == {"generate": 1.5, "train": 2.0}
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(ValueError, match="status"):
        run.update(status="done")
    with pytest.raises(ValueError, match="acuracy_after"):
        run.update(acuracy_after=0.5)
    assert (run.path / "run.json").read_bytes() == before


def test_the_record_is_whole_wherever_its_writer_is_killed(tmp_path):
    run = RunFolder.create(config_in(tmp_path))
    found = found_after_kills(
        lambda: run.update(steps=1), lambda: run.update(steps=2), lambda: run.read().steps
    )
    assert (found[-1], set(found)) == (2, {1, 2})


def test_credentials_in_settings_and_reasons_stay_out_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    config = config_in(tmp_path, model=ModelConfig(path="https://me:pa55@host/model"))
    run = RunFolder.create(config)
    run.add_attempt("login 0123456789abcdef refused")
    run.update(reason="login 0123456789abcdef refused")
    written = "".join(p.read_text() for p in run.path.iterdir() if p.is_file())
    assert "pa55" not in written
    assert "0123456789abcdef" not in written
    assert run.read().reason == "login *** refused"


def test_a_root_that_cannot_be_written_and_a_folder_without_a_record_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"storage\.root=\S+ cannot be written \(Not a directory"):
        RunFolder.create(config_in(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        RunFolder(tmp_path).read()


def test_a_metrics_line_per_step_as_json_with_null_for_what_is_no_number(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(0, {"val/accuracy": 0.25})
    log.append(1, {"epoch": 2, "a": float("nan"), "b": float("-inf"), "c": np.float32(0.5)})
    first, second = map(json.loads, log.path.read_text().splitlines())
    age = datetime.now(UTC) - datetime.fromisoformat(first.pop("time"))
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert first == {"step": 0, "epoch": 0, "val/accuracy": 0.25}
    del second["time"]
    assert second == {"step": 1, "epoch": 2, "a": None, "b": None, "c": 0.5}
    assert log.path.stat().st_mode & 0o777 == 0o644


def test_cutting_removes_later_steps_and_a_half_written_line(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(5):
        log.append(step, {"a": step / 10})
    whole = log.path.read_text().splitlines()
    with log.path.open("a") as file:
        file.write('{"step": 5, "a": 0.')
    assert [row["step"] for row in log.read()] == [0, 1, 2, 3, 4]
    log.cut_after(2)
    assert log.path.read_text().splitlines() == whole[:3]


def test_rollout_rows_hold_what_was_generated_and_learned(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "my-run")
    right, other = make_rollout([5, 6, 7], [0, 1]), make_rollout([5], [2], group_id=1)
    right = replace(
        right,
        problem=Problem(40, "countdown", (), {"target": 3, "numbers": [1, 2]}, 2),
        prompt_text="make 3",
        response_text="<answer>1 + 2</answer>",
        completion=Completion(np.arange(2), np.float32([-0.5, -0.25]), "length", 10),
        scored=ScoredText(1.0, "correct", "1 + 2", rewards=(("f", 0.75), ("g", 0.25))),
    )
    learned = {"reward": [1.0, 0.5], "ref_kl": np.array([0.125, np.nan], dtype=np.float32)}
    file = log.write(12, 1, [right, replace(other, sample_index=1)], learned)
    assert file == tmp_path / "rollouts" / "step_000012.parquet"
    assert pq.read_schema(file).equals(ROLLOUTS)
    first, second = pq.read_table(file).to_pylist()
    age = datetime.now(UTC) - first.pop("generated_at")
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert first == {
        "run_id": "my-run",
        "step": 12,
        "epoch": 1,
        "prompt_index": 40,
        "data_source": "countdown",
        "group_id": 0,
        "sample_index": 0,
        "policy_version": 10,
        "prompt": "make 3",
        "response": "<answer>1 + 2</answer>",
        "answer": "1 + 2",
        "verdict": "correct",
        "score": 1.0,
        "reward": 1.0,
        "advantage_mean": None,
        "value_mean": None,
        "prompt_tokens": 3,
        "response_tokens": 2,
        "finish_reason": "length",
        "logprob_sum": -0.75,
        "logprob_gap_mean": None,
        "ref_kl": 0.125,
        "turns": None,
        "value": None,
        "truth": '{"numbers": [1, 2], "target": 3}',
        "rewards": [{"name": "f", "score": 0.75}, {"name": "g", "score": 0.25}],
    }
    assert (second["prompt_index"], second["group_id"], second["sample_index"]) == (1, 1, 1)
    assert (second["reward"], second["ref_kl"], second["rewards"]) == (0.5, None, None)
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_resume_forgets_what_lies_past_its_checkpoint(tmp_path, make_rollout):
    run, rollouts = RunFolder.create(config_in(tmp_path)), [make_rollout([1], [2])]

    def steps_on_disk() -> tuple[list[int], list[str]]:
        files = sorted(path.name for path in run.rollouts.folder.iterdir())
        return [row["step"] for row in run.metrics.read()], files

    run.metrics.append(0, {})
    run.held_out.write(0, rollouts)
    for step in (1, 2, 3):
        run.rollouts.write(step, 0, rollouts, {})
        run.held_out.write(step, rollouts)
        run.metrics.append(step, {})
    (run.rollouts.folder / ".tmp-step_000004.parquet-0a1b2c3d").write_bytes(b"PAR1")
    run.cut_after(2)
    assert steps_on_disk() == ([0, 1, 2], ["step_000001.parquet", "step_000002.parquet"])
    assert [row["step"] for row in run.held_out.read()] == [0, 1, 2]
    run.cut_after(0)  # no checkpoint: the first test is redone as well
    assert steps_on_disk() == ([], [])
    assert run.held_out.read() == []


def test_a_truth_keeps_its_letters_where_sql_reads_it(tmp_path, make_rollout):
    run = RunFolder.create(config_in(tmp_path))
    asked = replace(make_rollout([1], [2]), problem=Problem(0, "custom", (), {"city": "東京"}, 0))
    run.held_out.write(0, [asked])
    (row,) = run.held_out.read()
    assert row["ground_truth"] == '{"city": "東京"}'
