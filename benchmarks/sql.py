"""Every saved question over a million rollouts, beside verl's dump read by DuckDB.

    .venv/bin/python benchmarks/sql.py [--rows 1000000] [--runs 4] [--threads 2] [--root FOLDER]

Writes the runs first, through the rollout log that training uses: a file per step; the last run
is still in progress. Then asks every question with its defaults and, if that differs, as in its
Example: once with the files dropped from the page cache, then three times, of which the median
counts. Wall seconds from the call to the rows in memory, views and listing of files included; the
start of Python is measured separately.

The peer: the same rows as verl's `trainer.rollout_data_dir` dumps them, a JSON-lines file per step,
read by DuckDB with as many threads, typed by its own sniffer.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

TARGET_S = 1.0
TIMES = 3
PEER = {
    "verdict_shares_by_step": "select run_id, step, verdict, count(*) from dump group by all",
    "longest_responses": "from dump order by response_tokens desc limit 20",
    "phrase_by_step": (
        "select run_id, step, avg(cast(regexp_matches(output, '(?i)wait') as int)) "
        "from dump group by all"
    ),
}
"""Saved questions, and the SQL with which a user would ask verl's dump."""


def arguments() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rollouts of all runs")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--root", type=Path, help="keep the runs there, or ask those that are")
    parser.add_argument("--only", default="", help="names of questions, commas between")
    parser.add_argument("--no-peer", action="store_true")
    return parser.parse_args()


def limit_threads(threads: int) -> None:
    """Keeps this process, and the pools that libraries start on import, to so many threads."""
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ[name] = str(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def write_runs(root: Path, num_rows: int, num_runs: int) -> None:
    """Writes the runs and says at what rate."""
    from sql_workload import STEP_ROWS, Author, write_run

    steps = max(-(-num_rows // (num_runs * STEP_ROWS)), 1)
    author = Author()
    start = time.perf_counter()
    made = [
        write_run(root, f"run-{i}", steps, author, finish=i < num_runs - 1) for i in range(num_runs)
    ]
    everything = time.perf_counter() - start
    rows, chars = sum(one.rows for one in made), sum(one.text_chars for one in made)
    writes = sorted(s for one in made for s in one.write_s)
    size = sum(file.stat().st_size for file in root.rglob("*.parquet"))
    print(f"{rows:,} rollouts of {num_runs} runs, {chars / 1e9:.2f} GB of text")
    print(
        f"a step's file, {STEP_ROWS} rows: median {statistics.median(writes) * 1e3:.1f} ms, "
        f"99th percentile {writes[int(len(writes) * 0.99)] * 1e3:.1f} ms"
    )
    print(
        f"writing {sum(writes):.1f} s ({rows / sum(writes):,.0f} rows/s, "
        f"{chars / 1e6 / sum(writes):.0f} MB/s); "
        f"with making the text up {everything:.0f} s"
    )
    files = len(list(root.glob("runs/*/rollouts/*.parquet")))
    print(f"{files:,} files of rollouts; {size / 1e6:.0f} MB on disk", flush=True)


def write_peer(root: Path, folder: Path) -> None:
    """Writes the same rollouts as verl's dump has them: `<step>.jsonl`, all runs side by side."""
    import polars as pl

    for run in sorted((root / "runs").iterdir()):
        (folder / run.name).mkdir(parents=True)
        rows = pl.scan_parquet(run / "rollouts" / "*.parquet").select(
            "run_id",
            "step",
            "verdict",
            "answer",
            "score",
            "response_tokens",
            "finish_reason",
            "prompt_index",
            input="prompt",
            output="response",
        )
        for (step,), group in rows.collect().partition_by("step", as_dict=True).items():
            group.write_ndjson(folder / run.name / f"{step}.jsonl")


def drop_from_cache(folder: Path) -> None:
    """Makes the next read of every file below a folder come from the disk."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Does the work and returns its wall seconds, and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def median(work: Callable[[], Any]) -> tuple[float, float]:
    """Does the work a few times and returns the medians of both."""
    walls, cpus = zip(*(seconds(work) for _ in range(TIMES)), strict=True)
    return statistics.median(walls), statistics.median(cpus)


def cases(only: str) -> Iterator[tuple[str, dict[str, str], str | None]]:
    """Yields each question with its defaults, and as its Example asks it: name, values, run."""
    from tasks.queries.saved_questions import list_queries

    for query in list_queries():
        if only and query.name not in only.split(","):
            continue
        parser = argparse.ArgumentParser()
        parser.add_argument("words", nargs=3)
        parser.add_argument("--run")
        parser.add_argument("-p", action="append", default=[])
        example = parser.parse_args(shlex.split(query.example))
        given = dict(text.partition("=")[::2] for text in example.p)
        yield query.name, {}, None
        if given or example.run:
            yield query.name, given, example.run


def ask_all(root: Path, only: str) -> None:
    """Asks every question and prints a table, the slowest last."""
    from tasks.queries.sql import ask

    lines = []
    for name, values, run in cases(only):

        def question(
            name: str = name, values: dict[str, str] = values, run: str | None = run
        ) -> None:
            ask(name, values, root=root, run=run)

        drop_from_cache(root)
        cold, _ = seconds(question)
        words = [
            name,
            *(f"-p {k}={v}" for k, v in values.items()),
            *(["--run", run] if run else []),
        ]
        lines.append((*median(question), cold, " ".join(words)))
    lines.sort()
    print(f"\n{'question':<76}{'cold s':>8}{'CPU s':>8}{'s':>8}")
    for warm, cpu, cold, words in lines:
        verdict = "" if warm < TARGET_S else "  NOT met"
        print(f"{words[:74]:<76}{cold:8.2f}{cpu:8.2f}{warm:8.2f}{verdict}")
    missed = sum(line[0] >= TARGET_S for line in lines)
    total = sum(line[0] for line in lines)
    verdict = "met" if not missed else f"NOT met by {missed}"
    print(f"{len(lines)} askings, {total:.1f} s together; each under {TARGET_S:.0f} s: {verdict}")


def ask_peer(root: Path, folder: Path) -> None:
    """Asks verl's dump the same, and prints its seconds as a multiple of ours."""
    import duckdb

    from tasks.queries.sql import ask

    write_peer(root, folder)
    size = sum(file.stat().st_size for file in folder.rglob("*.jsonl"))
    num_files = len(list(folder.rglob("*.jsonl")))
    print(f"\nbeside it, verl's dump: {num_files:,} files, {size / 1e6:.0f} MB")
    with duckdb.connect() as connection:
        connection.execute(
            f"create view dump as from read_json('{folder}/*/*.jsonl', union_by_name = false)"
        )
        for name, select in PEER.items():
            ours, _ = median(partial(ask, name, root=root))
            theirs, _ = median(lambda select=select: connection.execute(select).fetchall())  # type: ignore[misc]
            print(f"{name:<40}ours {ours:6.2f} s, theirs {theirs:6.2f} s: {theirs / ours:5.1f}")


def time_command(root: Path) -> None:
    """Prints the seconds of one command line, Python's start included."""
    main = "from flows.cli.main import main; main()"
    command = [sys.executable, "-c", main, "sql", "learning_curve", "--run", "latest"]

    def run_it() -> None:
        subprocess.run([*command, f"storage.root={root}"], check=True, stdout=subprocess.DEVNULL)

    print(f"\n`countdown-train sql learning_curve --run latest`: {median(run_it)[0]:.2f} s")


def main() -> None:
    """Writes, asks, and leaves nothing behind unless --root says where."""
    options = arguments()
    limit_threads(options.threads)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < 6_000 * options.rows:
        raise SystemExit(f"{tempfile.gettempdir()} needs {6_000 * options.rows / 1e9:.0f} GB free")
    with tempfile.TemporaryDirectory(prefix="sql-benchmark-") as temporary:
        root = options.root or Path(temporary) / "outputs"
        if not (root / "runs").exists():
            write_runs(root, options.rows, options.runs)
        ask_all(root, options.only)
        time_command(root)
        if not options.no_peer:
            ask_peer(root, Path(temporary) / "dump")


if __name__ == "__main__":
    main()
