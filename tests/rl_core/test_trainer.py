"""The loop with real Ray workers: a stopped and resumed run equals an undisturbed one."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from safetensors.torch import load_file

from rl_core.background_save import BackgroundSave
from rl_core.checkpoints import latest
from rl_core.collection import PromptedProblem
from rl_core.config import RunConfig
from rl_core.prompts import encode_prompt, load_tokenizer
from rl_core.tracking import RunFolder
from rl_core.trainer import TrainInputs, train
from rl_core.types import Problem
from rl_core.workers import Workers

STEPS = 4
NOT_COMPARED = (
    "timing_s/",
    "timing_per_token_ms/",
    "rollout/tokens_per_s",
    "time",
    "mfu/",
    "memory/",
)


def settings(root: Path, run_id: str, engine: str, overlap: int = 0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_id": run_id,
            "storage": {"root": root},
            "data": {"train_batch_size": 4, "max_prompt_length": 64, "max_response_length": 12},
            "actor": {"mini_batch_size": 2, "lr": 1e-3},
            "critic": {"lr": 1e-3},
            "rollout": {
                "engine": engine,
                "kv_cache_mib": 16,
                "max_num_seqs": 8,
                "overlap": overlap,
            },
            "resources": {"learner_threads": 1},
            "trainer": {"total_steps": STEPS, "save_freq": 2, "test_freq": 2, "test_problems": 3},
        }
    )


def inputs(model_path: Path) -> TrainInputs:
    tokenizer = load_tokenizer(str(model_path))

    def prompted(index: int) -> PromptedProblem:
        problem = Problem(
            index=index,
            data_source="countdown",
            messages=({"role": "user", "content": f"make {index + 10}: <think>"},),
            ground_truth={"target": index + 10, "numbers": [1, 2, index]},
            num_solutions=1,
        )
        return PromptedProblem(
            problem, *encode_prompt(problem.messages, tokenizer, chat_template=False)
        )

    return TrainInputs(
        train=[prompted(i) for i in range(10)],
        test=[prompted(i) for i in range(20, 25)],
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
    )


def train_until(
    config: RunConfig,
    model_path: Path,
    stop_after: int | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    write: Callable[[Callable[[Path], None], Path], None] = lambda write, folder: write(folder),
) -> RunFolder:
    """Trains from the latest checkpoint on; `write` stands around the learner's own."""
    run = RunFolder.create(config)
    checkpoint = latest(run.path)
    start_step = checkpoint.step if checkpoint else 0
    run.cut_after(start_step)
    done: list[int] = []
    resume_from = checkpoint.path if checkpoint else None
    with (
        Workers.start(config, model_path, resume_from=resume_from) as workers,
        BackgroundSave(
            config.checkpoints, run.path, workers.snapshot, partial(write, workers.write_snapshot)
        ) as saves,
    ):

        def tell(step: int, last_step: int, metrics: dict[str, float]) -> None:
            done.append(step)
            on_step(step)

        last = train(
            config,
            inputs(model_path),
            workers=workers,
            run=run,
            saves=saves,
            start_step=start_step,
            on_step=tell,
            should_stop=lambda: stop_after is not None and done[-1] + 1 >= stop_after,
        )
    assert last == (stop_after or config.trainer.total_steps)
    return run


def comparable(run: RunFolder) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(NOT_COMPARED)} for row in rows]


def check_timings(run: RunFolder) -> None:
    """Every phase is in the step, and none is counted twice."""
    for row in run.metrics.read()[1:]:
        seconds = {k: v for k, v in row.items() if k.startswith("timing_s/")}
        step = seconds.pop("timing_s/step")
        phases = "gen handover values adv update_critic update_actor sync"
        assert {f"timing_s/{phase}" for phase in phases.split()} <= seconds.keys()
        assert sum(seconds.values()) <= step


def rollouts(run: RunFolder) -> pl.DataFrame:
    frame = pl.read_parquet(run.path / "rollouts" / "*.parquet")
    return frame.drop("run_id", "generated_at").sort("step", "group_id", "sample_index")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_a_run_stopped_and_resumed_equals_an_undisturbed_one(engine, tmp_path, tiny_model_path):
    whole = train_until(settings(tmp_path, "whole", engine), tiny_model_path)
    halves = settings(tmp_path, "halves", engine)
    train_until(halves, tiny_model_path, stop_after=3)
    resumed = train_until(halves, tiny_model_path)

    assert [row["step"] for row in comparable(whole)] == list(range(STEPS + 1))
    saved = [row["step"] for row in whole.metrics.read() if "timing_s/save_checkpoint" in row]
    assert saved == [2, 4]
    assert comparable(resumed) == comparable(whole)
    assert rollouts(resumed).equals(rollouts(whole))
    assert rollouts(whole)["step"].value_counts().sort("step")["count"].to_list() == [4] * STEPS
    expected = load_file(whole.path / "checkpoints/latest/model.safetensors")
    got = load_file(resumed.path / "checkpoints/latest/model.safetensors")
    assert expected.keys() == got.keys()
    assert all(expected[name].equal(got[name]) for name in expected)
    check_timings(whole)
    before = load_file(tiny_model_path / "model.safetensors")
    assert any(not before[name].equal(got[name]) for name in before)


@pytest.mark.slow
def test_overlap_learns_from_the_policy_before_but_never_across_a_checkpoint(
    tmp_path, tiny_model_path
):
    config = settings(tmp_path, "overlap", "hf", overlap=1)
    run = train_until(config, tiny_model_path)
    versions = rollouts(run).group_by("step").agg(pl.col("policy_version").unique()).sort("step")
    # Steps 2 and 4 save: what follows a save waits for it, and what precedes it need not.
    assert versions.rows() == [(1, [0]), (2, [0]), (3, [2]), (4, [2])]
    gaps = {row["step"]: row.get("rollout/logprob_gap_mean") for row in comparable(run)}
    assert max(gaps[1], gaps[3]) < 1e-5 < 1e-4 < min(gaps[2], gaps[4])
    check_timings(run)
    stopped = settings(tmp_path, "stopped", "hf", overlap=1)
    train_until(stopped, tiny_model_path, stop_after=2)
    assert comparable(train_until(stopped, tiny_model_path)) == comparable(run)
