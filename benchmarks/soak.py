"""Whether a night stays flat: a small job of many steps with all real parts, and what grows in it.

    .venv/bin/python benchmarks/soak.py [--steps 1000] [--json FILE] [KEY=VALUE ...]

Everything is real and small: a Prefect server of its own, `countdown-train run` as its flow (live
artifacts and diagnosis included), Ray, learner, vLLM engine, rollout log, tests, checkpoints and
their pruning. Each process is sampled about every second. The tables give, over the steps after
`--warm-up`, by Theil and Sen's estimator (the median slope between any two samples): anonymous
memory per step, open files and threads, CPU seconds per step and their drift over the run; then the
use of the disk. Exit code 1: a process gains more than 0.2 MB per step, or keeps files open
or threads alive. Times are only printed: they mean something on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from soak_watch import Disk, Look, Watch, children, summarize, theil_sen_slope

ROOT: Final = Path(__file__).parent.parent
_INTERVAL_S: Final = 1.0
_DISK_INTERVAL_S: Final = 10.0
_LIMIT_S: Final = 600.0
_JOB: Final = (
    "preset=quickstart",
    *("base_model.hidden_size=64", "base_model.intermediate_size=128", "base_model.num_layers=2"),
    *("base_model.num_heads=2", "base_model.steps=60", "base_model.num_threads=1"),
    *("data.train_size=2000", "data.test_size=64", "data.max_response_length=64"),
    *("data.train_batch_size=8", "actor.mini_batch_size=4", "rollout.num_engines=1"),
    "actor.micro_batch_tokens=128",  # two or three responses: many shapes per step
    *("resources.learner_threads=1", "trainer.save_freq=20", "trainer.test_freq=20"),
    *("trainer.test_problems=16", "evaluation.samples_per_problem=1"),
    "evaluation.max_problems=16",
    # Both quotas are met on the way, so that pruning and ageing have something to do.
    *("checkpoints.keep_last=2", "storage.rollout_quota_bytes=200000"),
)


@contextmanager
def server(folder: Path, environment: Mapping[str, str]) -> Iterator[psutil.Process]:
    """Runs `prefect server start` with the repository's settings; yields its process."""
    with (folder / "server.log").open("ab") as log:
        process = psutil.Popen(
            [_program("prefect"), "server", "start", "--host", "127.0.0.1"],
            cwd=ROOT,
            env=dict(environment),
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not _is_up(environment["PREFECT_API_URL"]):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Prefect server did not start: {folder / 'server.log'}")
            time.sleep(0.2)
        yield process
    finally:
        tree = [process, *children(process)]
        process.terminate()
        for left in psutil.wait_procs(tree, timeout=30)[1]:
            left.kill()


def _is_up(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=5).is_success
    return False


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _environment(folder: Path) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
    }


def soak(folder: Path, steps: int, overrides: Sequence[str]) -> tuple[Watch, Disk, list[Any]]:
    """Runs the job to its end; returns what was sampled, and its metrics.

    Raises:
        RuntimeError: it failed.
    """
    environment = _environment(folder)
    arguments = [*_JOB, *overrides, f"trainer.total_steps={steps}", f"storage.root={folder}/out"]
    run_folder = folder / "out" / "runs" / "soak"
    with server(folder, environment) as serving, (folder / "run.log").open("ab") as log:
        run = psutil.Popen(
            [_program("countdown-train"), "run", *arguments, "run_id=soak"],
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            watch, disk = Watch(run, serving), Disk({})
            _follow(run_folder, steps, run, watch, disk)
            if run.wait() != 0:
                raise RuntimeError(f"the run failed: {(folder / 'run.log').read_text()[-2000:]}")
        finally:
            if run.is_running():
                run.terminate()
                run.wait()
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return watch, disk, [json.loads(line) for line in lines]


def _follow(run_folder: Path, steps: int, run: psutil.Process, watch: Watch, disk: Disk) -> None:
    """Samples processes and folders while the run trains."""
    metrics, step, disk_at = run_folder / "metrics.jsonl", -1, 0.0
    disk.folders = {
        "run folder": run_folder,
        "of it checkpoints": run_folder / "checkpoints",
        "of it rollouts": run_folder / "rollouts",
        "of it workers": run_folder / "workers",
        "of it metrics.jsonl": run_folder / "metrics.jsonl",
        "of it log.txt": run_folder / "log.txt",
        "Prefect's database": run_folder.parents[2] / "prefect",
        "Prefect's results": run_folder.parents[2] / "storage",
        "/dev/shm": Path("/dev/shm"),
    }
    read_up_to = 0
    while run.poll() is None and step < steps:
        time.sleep(_INTERVAL_S)
        if not metrics.exists():
            continue
        with metrics.open("rb") as file:
            file.seek(read_up_to)
            new = file.read()
        read_up_to += len(new)
        step += new.count(b"\n")  # the first line is that of step 0
        if step < 1 or not new:
            continue
        watch.look(step)
        if time.monotonic() - disk_at > _DISK_INTERVAL_S:
            if watch.ray_folder is not None:
                disk.folders["Ray's session"] = watch.ray_folder
            disk_at = time.monotonic()
            disk.look(step)


def _after(warm_up: int, looks: Sequence[Look]) -> list[Look]:
    return [look for look in looks if look.step > warm_up]


def report(watch: Watch, disk: Disk, metrics: Sequence[Any], warm_up: int) -> dict[str, Any]:
    """Prints the tables; returns their numbers, and what is beyond its limit."""
    rows = [
        summarize(name, seen)
        for name, looks in watch.looks.items()
        if len(seen := _after(warm_up, looks)) >= 20  # fewer are not enough
    ]
    print(
        f"{'process':14}{'MB, first':>10}{'last':>8}{'MB/step':>9}{'files':>7}{'threads':>8}"
        f"{'CPU s/step':>12}{'drift':>8}"
    )
    for row in rows:
        print(
            f"{row.name:14}{row.mb_first:>10.1f}{row.mb_last:>8.1f}{row.mb_per_step:>9.3f}"
            f"{row.files_more:>+7.0f}{row.threads_more:>+8.0f}{row.cpu_s_per_step:>12.4f}"
            f"{row.cpu_drift:>+8.1%}"
        )
    everything = summarize("all", _together(watch, {row.name for row in rows}, warm_up))
    wall = [(m["step"], m["timing_s/step"]) for m in metrics if m["step"] > warm_up]
    wall_s = statistics.median(seconds for _, seconds in wall)
    wall_drift = theil_sen_slope(wall) * (wall[-1][0] - wall[0][0]) / wall_s
    print(
        f"a step takes {wall_s:.2f} s, {everything.cpu_s_per_step:.3f} CPU s of all processes; "
        f"drift from step {warm_up} to the last {wall_drift:+.1%}, CPU {everything.cpu_drift:+.1%}"
    )
    print(f"\n{'disk':22}{'MB, first':>10}{'last':>10}{'kB/step':>9}{'files':>8}{'last':>8}")
    on_disk = {}
    for name, seen in disk.seen.items():
        points = [point for point in seen if point[0] > warm_up]
        if not points:
            continue
        slope = theil_sen_slope([(step, mb) for step, mb, _ in points])
        on_disk[name] = {"mb_first": points[0][1], "mb_last": points[-1][1], "mb_per_step": slope}
        print(
            f"{name:22}{points[0][1]:>10.2f}{points[-1][1]:>10.2f}{1e3 * slope:>9.1f}"
            f"{points[0][2]:>8}{points[-1][2]:>8}"
        )
    faults = [fault for row in rows for fault in row.faults()]
    print("", *faults or ["nothing grows"], sep="\n")
    return {
        "processes": {row.name: asdict(row) for row in rows},
        "all": asdict(everything),
        "wall_s_per_step": wall_s,
        "wall_drift": wall_drift,
        "disk": on_disk,
        "faults": faults,
    }


def _together(watch: Watch, names: set[str], warm_up: int) -> list[Look]:
    """Returns the sums over all processes that were there at each look."""
    by_time: dict[float, list[Look]] = {}
    for name in names:
        for look in _after(warm_up, watch.looks[name]):
            by_time.setdefault(look.time_s, []).append(look)
    return [
        Look(
            looks[0].step,
            at,
            sum(look.own_mb for look in looks),
            sum(look.files for look in looks),
            sum(look.threads for look in looks),
            sum(look.cpu_s for look in looks),
        )
        for at, looks in sorted(by_time.items())
        if len(looks) == len(names)
    ]


def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--warm-up", type=int, default=100, help="steps that do not count")
    parser.add_argument("--json", type=Path, help="where the numbers go, every look included")
    parser.add_argument("--folder", type=Path, help="stays, by default a temporary one")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        watch, disk, metrics = soak(folder, options.steps, options.overrides)
        numbers = report(watch, disk, metrics, options.warm_up)
        if options.json:
            looks = {name: [asdict(look) for look in seen] for name, seen in watch.looks.items()}
            numbers |= {"looks": looks, "disk_looks": disk.seen}
            numbers["environments"] = {
                name: {k: v for k, v in variables.items() if k.endswith("_CACHE_CAPACITY")}
                for name, variables in watch.environments.items()
            }
            options.json.write_text(json.dumps(numbers, indent=1))
    return 1 if numbers["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
