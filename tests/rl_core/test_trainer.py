"""The loop with real Ray workers: a stopped and resumed run equals an undisturbed one."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from safetensors.torch import load_file

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.store import latest, list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.data.prompts import encode_prompt, load_tokenizer
from rl_core.data.sampling import Place, ProblemOrder
from rl_core.rewards.scoring import start_rewards
from rl_core.runs.rollout_log import step_files
from rl_core.runs.run_folder import RunFolder
from rl_core.system.disk_reserve import RESERVE, RESERVE_BYTES
from rl_core.system.signals import StopSignals
from rl_core.tracking.metric_table import METRICS
from rl_core.tracking.observers import StepObserver
from rl_core.trainer import Trainer, TrainInputs
from rl_core.types import Problem, PromptedProblem
from rl_core.workers.cluster import Workers
from rl_core.workers.engines import Engines
from tests.support.checkpoint_files import saved_files
from tests.support.faults import leave_free, mounted_small_disk
from tests.support.programs import command_lines
from tests.support.runs import merged, run_config
from tests.support.seeded_faults import ROOT
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.slow

STEPS = 4
NOT_COMPARED = (
    *("time", "timing_s/", "timing_per_token_ms/", "mfu/", "memory/", "disk/"),
    *("rollout/tokens_per_s", "rollout/engine_restarts", "rollout/engine_hangs"),
)


def settings(root: Path, run_id: str, **sections: Any) -> RunConfig:
    defaults = {
        "data": {"train_batch_size": 4, "max_prompt_length": 64, "max_response_length": 12},
        "actor": {"mini_batch_size": 2, "lr": 1e-3},
        "critic": {"lr": 1e-3},
        "rollout": {"engine": "hf", "kv_cache_mib": 16, "max_num_seqs": 8},
        "resources": {"learner_threads": 1},
        "trainer": {"total_steps": STEPS, "save_freq": 2, "test_freq": 2, "test_problems": 3},
    }
    return run_config(run_id=run_id, storage={"root": root}, **merged(defaults, sections))


def inputs(model_path: Path) -> TrainInputs:
    tokenizer = load_tokenizer(str(model_path))

    def prompted(index: int) -> PromptedProblem:
        messages = ({"role": "user", "content": f"make {index + 10}: <think>"},)
        truth = {"target": index + 10, "numbers": [1, 2, index]}
        problem = Problem(index, "countdown", messages, truth, num_solutions=1)
        return PromptedProblem(problem, *encode_prompt(messages, tokenizer, chat_template=False))

    return TrainInputs(
        train=[prompted(i) for i in range(10)],
        test=[prompted(i) for i in range(20, 25)],
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
    )


def trainer_of(
    config: RunConfig, model_path: Path, *parts: Any, observers: list[StepObserver], **more: Any
) -> Trainer:
    """Its parts are the workers, the rewards, the run and its saves."""
    read = inputs(model_path)
    order = ProblemOrder(Place(config.seed, len(read.train)), config.data.train_batch_size)
    return Trainer(config, read, *parts, order, observers, **more)


def stopper(after: int | None, heard: Callable[[int], None]) -> StepObserver:
    """Hears of the steps, and stops after one of them."""
    done: list[int] = []

    def on_step(step: int, last_step: int, metrics: dict[str, float]) -> None:
        done.append(step)
        heard(step)

    return StepObserver(
        wants_stop=lambda: after is not None and done[-1] + 1 >= after, on_step=on_step
    )


def train_until(
    config: RunConfig,
    model_path: Path,
    stop_after: int | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> RunFolder:
    """Trains from the latest checkpoint on."""
    run = RunFolder.create(config)
    checkpoint = latest(run.path)
    start_step = checkpoint.step if checkpoint else 0
    run.cut_after(start_step)
    resume_from = checkpoint.path if checkpoint else None
    with (
        start_rewards(config.env) as rewards,
        Workers.start(
            config, model_path, resume_from=resume_from, policy_version=start_step
        ) as workers,
        BackgroundSave(
            config.checkpoints, run.path, workers.snapshot, workers.write_snapshot
        ) as saves,
    ):
        observers = [
            StepObserver(measure=lambda: {"disk/free_gib": run.free_gib()}),
            stopper(stop_after if interruptible is nullcontext else None, on_step),
        ]
        parts = workers, rewards, run, saves
        trainer = trainer_of(
            config, model_path, *parts, observers=observers, interruptible=interruptible
        )
        last = trainer.train(start_step)
    assert last == (stop_after or config.trainer.total_steps)
    return run


def worker_classes() -> list[str]:
    """The classes of the Ray actors that live below this process: one model or two in each."""
    titles = command_lines(psutil.Process().children(recursive=True)).values()
    found = [re.search(r"ray::(\w+)", title) for title in titles]
    return sorted(name[1] for name in found if name and name[1].endswith("Actor"))


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model_path):
    """A run that nothing disturbed: read only."""
    return train_until(settings(tmp_path_factory.mktemp("out"), "whole"), tiny_model_path)


def test_an_undisturbed_run_logs_and_times_each_step_and_saves_what_it_learned(
    tiny_model_path, whole
):
    assert [row["step"] for row in comparable(whole)] == list(range(STEPS + 1))
    saved = [row["step"] for row in whole.metrics.read() if "timing_s/save_checkpoint" in row]
    assert saved == [2, 4]
    assert rollouts(whole)["step"].value_counts().sort("step")["count"].to_list() == [4] * STEPS
    check_timings(whole)
    before = load_file(tiny_model_path / "model.safetensors")
    learned = load_file(whole.path / "checkpoints/latest/model.safetensors")
    assert any(not before[name].equal(learned[name]) for name in before)


def test_every_metric_has_a_row_and_every_row_is_logged(whole):
    """By a run of PPO, and by the stored run of GRPO, which has the whole pipeline's."""
    logged = {name for row in whole.metrics.read() for name in row}
    lines = (ROOT / "tests/stored_run/storage/runs/stored/metrics.jsonl").read_text().splitlines()
    logged |= {name for line in lines for name in json.loads(line)}
    logged -= {"step", "epoch", "time"}
    rows = {name: [m.name for m in METRICS if m.is_row_of(name)] for name in logged}
    assert [name for name in logged if not rows[name]] == []
    named = {name for names in rows.values() for name in names}
    assert [m.name for m in METRICS if m.when is None and m.name not in named] == []
    code = "".join(path.read_text() for path in (ROOT / "rl_core").rglob("*.py"))
    for metric in METRICS:
        stem, rest = metric.name.split("*")[0].rstrip("/"), metric.name.partition("/")[2]
        assert stem in code or f"/{rest}" in code or f'"{rest}"' in code, metric.name


@pytest.mark.chaos
def test_a_disk_full_for_two_steps_costs_two_rollout_files_and_a_checkpoint(
    tmp_path, tiny_model_path, whole, caplog, survived
):
    with mounted_small_disk(tmp_path, RESERVE_BYTES + 24 * 2**20) as disk:
        reserve = disk / "runs" / "full" / RESERVE

        def on_step(step: int) -> None:
            if step == 1:
                assert reserve.stat().st_size == RESERVE_BYTES
                leave_free(disk, 0)
            if step == 3:
                (disk / "ballast").unlink()

        # At the end of a step its save is done: what `on_step` does to the disk meets no other.
        config = settings(disk, "full", checkpoints={"in_background": False})
        run = train_until(config, tiny_model_path, on_step=on_step)
        assert comparable(run) == comparable(whole)
        assert [file.last_step for file in step_files(run.rollouts.folder)] == [1, 4]
        assert [c.step for c in list_checkpoints(run.path)] == [4]
        after = saved_files(run.path / "checkpoints" / "latest")
        assert after == saved_files(whole.path / "checkpoints" / "latest")
        assert list(run.path.rglob(".tmp-*")) == []
        assert reserve.stat().st_size == RESERVE_BYTES
    for words in (
        "the rollouts of step 2 could not be written",
        "step 2 was not saved ([Errno 28] No space left on device",
        "the rollouts of step 3 could not be written",
    ):
        assert words in caplog.text
    survived("ENOSPC", "two steps of a run")


def sigterm_in_generation(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Sends it to this process when the first response of a step has ended, and never continues."""
    stream, asked = Engines.stream, list[str]()

    def held_stream(self: Engines, requests: Any, sampling: Any, phase: str = "gen") -> Any:
        asked.append(phase)
        for ended in stream(self, requests, sampling, phase):
            yield ended
            if phase == "gen" and asked.count("gen") == step:
                os.kill(os.getpid(), signal.SIGTERM)
                # Without an end: with the run's Ray gone, a thread that continued would abort all.
                threading.Event().wait()

    monkeypatch.setattr(Engines, "stream", held_stream)


class StoppedError(Exception):
    """What this process makes of SIGTERM."""


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_stop_while_responses_are_written_saves_at_once_and_resumes_exactly(
    tmp_path, tiny_model_path, monkeypatch, whole, staleness
):
    def stop(number: int, frame: object) -> None:
        raise StoppedError

    config = settings(tmp_path, "stopped", rollout={"staleness": staleness})
    last = 3 - 2 * staleness  # ahead, one of two is collected while the other is learned from
    with monkeypatch.context() as patch:
        sigterm_in_generation(patch, last + 1)
        before = signal.signal(signal.SIGTERM, stop)
        try:
            with pytest.raises(StoppedError), StopSignals(grace_s=LIMIT_S) as signals:
                run = train_until(
                    config, tiny_model_path, last, interruptible=signals.interruptible
                )
        finally:
            signal.signal(signal.SIGTERM, before)
    newest = latest(run.path)
    assert newest is not None
    assert newest.step == last
    assert [row["step"] for row in comparable(run)] == list(range(last + 1))

    if staleness:
        return  # a step that was begun ahead begins anew: tasks/supervision/test_supervisor.py
    resumed = train_until(config, tiny_model_path)
    assert comparable(resumed) == comparable(whole)
    assert rollouts(resumed).equals(rollouts(whole))
    latest_of = [saved_files(r.path / "checkpoints" / "latest") for r in (resumed, whole)]
    assert latest_of[0] == latest_of[1]


def test_one_step_ahead_learns_from_the_policy_before_but_never_across_a_checkpoint(
    tmp_path, tiny_model_path
):
    config = settings(tmp_path, "ahead", rollout={"staleness": 1})
    run = train_until(config, tiny_model_path)
    versions = rollouts(run).group_by("step").agg(pl.col("policy_version").unique()).sort("step")
    # Steps 2 and 4 save: what follows a save waits for it, and what precedes it need not.
    assert versions.rows() == [(1, [0]), (2, [0]), (3, [2]), (4, [2])]
    gaps = {row["step"]: row.get("rollout/logprob_gap_mean") for row in comparable(run)}
    assert max(gaps[1], gaps[3]) < 1e-5 < 1e-4 < min(gaps[2], gaps[4])
    check_timings(run)
    assert [row.get("rollout/staleness_mean") for row in comparable(run)] == [None, 0, 1, 0, 1]
    stopped = settings(tmp_path, "stopped", rollout={"staleness": 1})
    train_until(stopped, tiny_model_path, stop_after=2)
    assert comparable(train_until(stopped, tiny_model_path)) == comparable(run)


def test_tests_during_training_use_the_running_engine_and_choose_the_best(
    tmp_path, tiny_model_path, monkeypatch
):
    """The accuracies are put in, everything else is real; a test starts and loads nothing."""
    config = settings(tmp_path, "tested", trainer={"save_freq": 1, "test_freq": 1})
    accuracies, seen, alive = {0: 0.1, 1: 0.3, 2: 0.7, 3: 0.7, 4: 0.2}, [], []
    test = Trainer.test

    def tested(self, step):
        before = worker_classes()
        metrics = test(self, step)
        alive.append((before, worker_classes()))
        assert set(metrics) == {
            *("val/accuracy", "val/score", "val/response_length/mean"),
            "val/test_score/countdown",
        }
        assert metrics["val/test_score/countdown"] == metrics["val/score"]
        return metrics | {"val/accuracy": accuracies[len(alive) - 1]}

    monkeypatch.setattr(Trainer, "test", tested)
    run = train_until(config, tiny_model_path, on_step=seen.append)
    assert seen == [0, 1, 2, 3, 4]
    assert alive == [(["LearnerActor", "RolloutActor"],) * 2] * 5
    # Latest, and the newest two beside latest and best; the best is the first of equals.
    by_step = {c.step: c.accuracy for c in list_checkpoints(run.path)}
    assert by_step == {step: accuracies[step] for step in (1, 2, 3, 4)}
    assert (run.path / "checkpoints" / "best").readlink() == Path("step_000002")
    assert (run.path / "checkpoints" / "latest").readlink() == Path("step_000004")
    assert [row.get("val/accuracy") for row in run.metrics.read()] == list(accuracies.values())
    # What was answered is kept: the same problems at each test.
    kept = run.held_out.read()
    by_step = [[r["prompt_index"] for r in kept if r["step"] == step] for step in seen]
    assert by_step == [[20, 21, 22]] * 5
    assert {row["model"] for row in kept if row["step"] == 0} == {"base"}
    assert all(row["prompt"] and row["verdict"] and row["mode"] == "greedy" for row in kept)


def test_with_fewer_bits_engines_sample_from_the_very_policy_that_learns(tmp_path, tiny_model_path):
    model = {"lora_rank": 4, "load_in_4bit": True}
    two_steps = {"total_steps": 2, "save_freq": 1, "test_freq": 2}
    more = {"actor": {"optimizer": "adamw_8bit"}, "trainer": two_steps}
    config = settings(tmp_path, "bits", model=model, **more)
    train_until(config, tiny_model_path, stop_after=1)
    run = train_until(config, tiny_model_path)
    gaps = [row["rollout/logprob_gap_max"] for row in comparable(run)[1:]]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4  # the weights before they were rounded are a tenth off
