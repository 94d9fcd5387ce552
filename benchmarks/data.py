"""Making the Countdown data set, compared with another way: CPU seconds and peak memory.

    .venv/bin/python benchmarks/data.py [--rows 327680] [--rounds 3]

Ours draws, solves, proves unique, frames, hashes and writes. Hugging Face's `datasets` gets the
same puzzles ready-made, solutions included, and only frames (`map`) and writes (`to_parquet`); it
runs in the environment of step_time.py's peer, which is made if it is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from step_time import HERE, WORK, environment, make_environments

from rl_core.envs.countdown.templates import message_templates

TEST_ROWS = 1_024
SPLITS = ("train", "test")
PEER_PYTHON = WORK / "trl_grpo/bin/python"
TARGET = 2.5
MAX_PEAK_MB = 1_500


def report(command: Sequence[str | Path], *, ours: bool) -> dict[str, float]:
    """Runs a contestant on one thread and returns what it reports."""
    output = subprocess.run(
        [str(part) for part in command],
        env=environment(1, ours=ours) | {"POLARS_MAX_THREADS": "1", "ARROW_IO_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return result


def prepare_puzzles(made: Path, folder: Path) -> None:
    """Writes the puzzles of a data set, without what `datasets.map` has to add."""
    folder.mkdir()
    for split in SPLITS:
        table = pq.read_table(made / f"{split}.parquet")
        extra = table["extra_info"]
        solved = {name: pc.struct_field(extra, name) for name in ("num_solutions", "solution")}
        columns = {"nums": table["nums"], "target": table["target"], **solved}
        pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def same_rows(made: Path, theirs: Path) -> bool:
    """Says whether both wrote the same rows."""
    for split in SPLITS:
        own, other = (pq.read_table(folder / f"{split}.parquet") for folder in (made, theirs))
        if not other.select(own.column_names).cast(own.schema).equals(own):
            return False
    return True


def measure(root: Path, num_rows: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Returns each contestant's reports, one per round; in a round they take turns."""
    ours = [sys.executable, HERE / "ours_data.py", str(num_rows), str(TEST_ROWS), root / "ours"]
    report(ours, ours=True)
    prepare_puzzles(root / "ours", root / "puzzles")
    (root / "template").write_text(message_templates("base")[0]["content"])
    peer = [PEER_PYTHON, HERE / "peers/datasets_map.py", root / "puzzles", root / "template"]
    results: dict[str, list[dict[str, float]]] = {"ours": [], "datasets.map": []}
    for number in range(rounds):
        results["ours"].append(report(ours, ours=True))
        theirs = root / f"theirs_{number}"
        results["datasets.map"].append(report([*peer, theirs], ours=False))
    assert same_rows(root / "ours", root / "theirs_0"), "the contestants wrote different rows"
    return results


def shared_numbers(made: Path) -> str:
    """Says how often puzzles have the same numbers, and other targets, as others."""
    train, test = (
        pl.read_parquet(made / f"{split}.parquet", columns=["nums"]).select(
            pl.col("nums").list.sort()
        )
        for split in SPLITS
    )
    lines = []
    for size in sorted(train["nums"].list.len().unique()):
        own, asked = (rows.filter(pl.col("nums").list.len() == size) for rows in (train, test))
        sets = own.unique()
        known = asked.join(sets, on="nums", how="semi").height
        lines.append(
            f"{size} numbers: {own.height / sets.height:.2f} training puzzles to a set of them, "
            f"which {known / asked.height:.0%} of the test puzzles share with other targets"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints the table, with the targets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=327_680, help=f"and {TEST_ROWS} of the test")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    make_environments({"grpo"})
    with tempfile.TemporaryDirectory() as root:
        results = measure(Path(root), arguments.rows, arguments.rounds)
        shared = shared_numbers(Path(root) / "ours")
        sizes = [(Path(root) / f"ours/{split}.parquet").stat().st_size for split in SPLITS]
    print(f"{arguments.rows} + {TEST_ROWS} rows, one thread; ours takes {sum(sizes) / 1e6:.1f} MB")
    print(shared)
    print(f"{'':14} {'CPU s':>10} {'peak MB':>8}")
    medians = {
        name: {key: statistics.median(r[key] for r in reports) for key in ("cpu_s", "peak_mb")}
        for name, reports in results.items()
    }
    for name, median in medians.items():
        print(f"{name:14} {median['cpu_s']:10.2f} {median['peak_mb']:8.0f}")
    pairs = zip(results["datasets.map"], results["ours"], strict=True)
    ratio = statistics.median(theirs["cpu_s"] / own["cpu_s"] for theirs, own in pairs)
    print(f"theirs / ours: {ratio:.2f}, {TARGET} times: {'met' if ratio >= TARGET else 'NOT met'}")
    print(f"under {MAX_PEAK_MB} MB: {medians['ours']['peak_mb'] < MAX_PEAK_MB}")


if __name__ == "__main__":
    main()
