"""Any model to numbers with real engines: one checkpoint gives the same rows, byte for byte."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import base_digest
from rl_core.data.prompts import resolve_model
from rl_core.evaluation.rows import read_rows
from rl_core.evaluator import Evaluator
from rl_core.runs.run_folder import RunFolder
from tasks import evaluate
from tasks.evaluate import evaluate_models
from tasks.queries.checkpoint_names import find_model
from tests.conftest import build_tiny_model
from tests.support.adapters import save_learner
from tests.support.checkpoint_files import copying
from tests.support.held_out import write_test_split
from tests.tasks.test_evaluate import settings as settings_of_a_run


def write_data(folder: Path, num_problems: int) -> Path:
    return write_test_split(folder, [f"Make {2 + i} of 2 and {i}: " for i in range(num_problems)])


def settings(root: Path, engine: str = "vllm", **evaluation: int) -> RunConfig:
    data = {"max_prompt_length": 48, "max_response_length": 16}
    rollout = {"engine": engine, "kv_cache_mib": 16, "max_num_seqs": 8}
    evaluation = {"samples_per_problem": 3} | evaluation
    return settings_of_a_run(root, data=data, rollout=rollout, evaluation=evaluation)


LABELS = ("run_id", "model", "step", "evaluation", "num_problems")


def without_labels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in LABELS} for row in rows]


@pytest.mark.slow
def test_a_checkpoint_gives_the_same_rows_and_is_as_good_as_itself(tmp_path, tiny_model_path):
    data = write_data(tmp_path / "data", 6)
    trained = tmp_path / "trained"
    build_tiny_model(trained, seed=1)
    config = settings(tmp_path / "out")
    run = RunFolder.create(config)
    run.update(model=str(tiny_model_path), data=str(data))
    save_checkpoint(run.path, 7, copying(trained), 0.5)
    # The checkpoint is the folder gone through a save; both are asked in processes of their own.
    checkpoint, folder = find_model("r", config.storage.root), find_model(str(trained), tmp_path)
    result = evaluate_models(config, data, checkpoint, folder)
    saved, plain = (read_rows(file) for file in result.files)
    assert result.files[0] == run.path / "eval" / "step_000007.parquet"
    assert result.files[1].parent == config.storage.root / "evaluations"
    assert {(r["run_id"], r["model"], r["step"]) for r in saved} == {("r", "step_000007", 7)}
    assert {(r["run_id"], r["step"]) for r in plain} == {("", 0)}
    assert {(r["evaluation"], r["num_problems"]) for r in [*saved, *plain]} == {
        (Evaluator(config, data).evaluation, 6)
    }
    assert without_labels(saved) == without_labels(plain)
    assert result.comparison is not None
    assert (result.comparison.verdict, result.comparison.p_value) == ("cannot tell", 1.0)
    assert [s.accuracy for s in result.summaries] == [result.summaries[0].accuracy] * 2

    # So are a checkpoint that holds only an adapter, and the merged model; hf starts sooner.
    digest = base_digest(tiny_model_path)
    adapter = save_checkpoint(
        run.path, 8, partial(save_learner, tiny_model_path), 0.5, base_sha256=digest
    )
    merged = resolve_model(str(adapter), tmp_path)
    named = (find_model("r/step_000008", config.storage.root), find_model(str(merged), tmp_path))
    by_hf = settings(tmp_path / "out", "hf")
    answers = [read_rows(file) for file in evaluate_models(by_hf, data, *named).files]
    assert without_labels(answers[0]) == without_labels(answers[1]) != without_labels(plain)

    # A problem's rows do not depend on those asked beside it.
    fewer = settings(tmp_path / "out", max_problems=4)
    (file,) = evaluate_models(fewer, data, folder).files
    first_four = [row for row in plain if row["prompt_index"] < 4]
    assert without_labels(read_rows(file)) == without_labels(first_four)


def test_prune_leaves_the_checkpoint_that_is_evaluated(cli, tmp_path, monkeypatch):
    """ATTACK: a prune that begins when the engines do."""
    config = settings(tmp_path)
    run = RunFolder.create(config)
    for step in (1, 2, 3):
        save_checkpoint(run.path, step, lambda folder: (folder / "weights").touch(), 0.5)
    words = ["prune", "run_id=r", "checkpoints.keep_last=0", "checkpoints.quota_bytes=1"]

    @contextmanager
    def pruning(*_: object, **__: object) -> Iterator[None]:
        assert "being read by another process" in cli(*words).out
        raise KeyError
        yield

    monkeypatch.setattr(evaluate.Workers, "start", pruning)
    model = find_model("r/step_000002", tmp_path)
    with pytest.raises(KeyError):
        evaluate_models(config, write_data(tmp_path / "data", 2), model)
    assert (run.path / "checkpoints" / "step_000002" / "weights").exists()
    cli(*words)
    (said,) = cli("evaluate", "checkpoint=r/step_000002", code=2).err.splitlines()
    assert "no checkpoint 'step_000002' (there are: step_000001, step_000003)" in said
