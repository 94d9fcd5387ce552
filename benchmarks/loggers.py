"""What loggers cost a training step: CPU time of the trainer, and of the process beside it.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/loggers.py [--steps 200] [--step-s 1.0]

Steps without any work are logged `--step-s` apart, 70 metrics each, to only `metrics.jsonl`, then
also to TensorBoard, then also to a wandb whose server accepts connections and never answers (probe
and failed start included), in turn. The table gives the CPU seconds per step of the trainer's
process (all threads), the part that is not for `metrics.jsonl`, the same as a share of a step of
`--step-s`, the slowest single step, and the total of the process beside the trainer (at a lower
priority). "Under 1% of a step" is the trainer's share.

The second table gives the CPU time of the trainer's self-checks: the diagnosis after 25 and after
1,000 steps, how much 256 responses of 64 tokens repeat themselves, and the machine's memory with 12
processes (Ray's, a learner and two engines), each as often as a step of `--step-s` makes it.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from rl_core.config.operations import StorageConfig, TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.rollout.collector import repeated_share
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.diagnosis import diagnose
from rl_core.tracking.host_memory import INTERVAL_S, usage_now
from rl_core.tracking.tensorboard_tracker import TensorBoardTracker
from rl_core.tracking.wandb_tracker import wandb_tracking
from tasks.prefect_ui.progress import DIAGNOSIS_STEPS

METRICS = {f"timing_s/phase_{i}": i / 7 for i in range(70)}
LOGGERS: tuple[tuple[str, ...], ...] = ((), ("tensorboard",), ("wandb",))


def measure(loggers: tuple[str, ...], steps: int, step_s: float) -> tuple[float, float, float]:
    """Returns CPU seconds per step, the slowest step's wall seconds, and children's CPU seconds."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        trainer = TrainerConfig.model_validate({"logger": loggers, "wandb_mode": "online"})
        config = RunConfig(run_id="bench", storage=StorageConfig(root=Path(root)), trainer=trainer)
        run = RunFolder.create(config)
        took = []
        stack.enter_context(wandb_tracking(config, run.path))
        tensorboard = stack.enter_context(TensorBoardTracker(config, run.path, 0))
        tensorboard.on_step(0, steps, METRICS)  # loads the library
        before = time.process_time()
        for step in range(1, steps + 1):
            start = time.perf_counter()
            run.metrics.append(step, METRICS)
            tensorboard.on_step(step, steps, METRICS)
            took.append(time.perf_counter() - start)
            time.sleep(max(0.0, step_s - took[-1]))
        per_step = (time.process_time() - before) / steps
        beside = sum(sum(p.cpu_times()[:2]) for p in psutil.Process().children(recursive=True))
    return per_step, max(took), beside


def cpu_s(act: Callable[[], object], times: int = 100) -> float:
    """Returns the CPU seconds of one call."""
    act()
    before = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - before) / times


def observe(step_s: float) -> dict[str, float]:
    """Returns the CPU seconds per step of the trainer's self-checks, by name."""
    rng = np.random.default_rng(0)
    names = ["critic/score/mean", "reward/accuracy", "actor/entropy_loss", "critic/kl"]
    rows = [
        {"step": step, **dict.fromkeys(names, float(rng.uniform(0.3, 0.4))), **METRICS}
        for step in range(1_000)
    ]
    responses = rng.integers(0, 500, (256, 64))
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(12)]
    try:
        return {
            "diagnosis at 25": cpu_s(partial(diagnose, rows[:25])) / DIAGNOSIS_STEPS,
            "diagnosis at 1000": cpu_s(partial(diagnose, rows)) / DIAGNOSIS_STEPS,
            "repeated text": cpu_s(lambda: [repeated_share(response) for response in responses]),
            "machine's memory": cpu_s(usage_now) * step_s / INTERVAL_S,
        }
    finally:
        for process in others:
            process.kill()
            process.wait()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as black_hole:
        port = black_hole.getsockname()[1]
        os.environ |= {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": "0" * 40}
        found: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
        for _ in range(options.rounds):
            for loggers in LOGGERS:
                measured = measure(loggers, options.steps, options.step_s)
                found.setdefault(loggers, []).append(measured)
    head = ("us/step", "more", "share", "slowest", "beside")
    print(f"{'with metrics.jsonl':20}" + "".join(f"{name:>10}" for name in head))
    medians = {
        loggers: [statistics.median(column) for column in zip(*rounds, strict=True)]
        for loggers, rounds in found.items()
    }
    for loggers, (per_step, slowest, beside) in medians.items():
        more = per_step - medians[()][0]
        print(
            f"{' '.join(loggers) or 'nothing else':20}{per_step * 1e6:>10.0f}{more * 1e6:>10.0f}"
            f"{more / options.step_s:>10.3%}{slowest * 1e3:>7.1f} ms{beside:>8.1f} s"
        )
    print(f"\n{'looking at itself':20}{'us/step':>10}{'share':>10}")
    for name, seconds in observe(options.step_s).items():
        print(f"{name:20}{seconds * 1e6:>10.0f}{seconds / options.step_s:>10.3%}")


if __name__ == "__main__":
    main()
