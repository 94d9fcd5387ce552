"""Hugging Face datasets for data.py: rows framed by `map` from ready-made puzzles, then written.

python benchmarks/peers/datasets_map.py PUZZLES_FOLDER TEMPLATE_FILE OUTPUT_FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import datasets
from usage import print_report


def framing(split: str, template: str) -> Any:
    """Returns the function that makes a row of a puzzle, as verl's users write it."""

    def frame(example: dict[str, Any], index: int) -> dict[str, Any]:
        numbers, target = example["nums"], example["target"]
        content = template.format(numbers=numbers, target=target)
        return {
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": content}],
            "ability": "math",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": target, "numbers": numbers},
            },
            "extra_info": {
                "split": split,
                "index": index,
                "num_solutions": example["num_solutions"],
                "solution": example["solution"],
            },
        }

    return frame


def main() -> None:
    """Prints a report: CPU seconds of `map` and `to_parquet`, peak megabytes of the process."""
    puzzles, template, output = Path(sys.argv[1]), Path(sys.argv[2]).read_text(), Path(sys.argv[3])
    datasets.disable_progress_bars()
    cpu_s = 0.0
    for split in ("train", "test"):
        rows = datasets.Dataset.from_parquet(
            str(puzzles / f"{split}.parquet"), cache_dir=str(output / "cache")
        )
        start = time.process_time()
        framed = rows.map(
            framing(split, template),
            with_indices=True,
            remove_columns=["num_solutions", "solution"],
        )
        framed.to_parquet(str(output / f"{split}.parquet"))
        cpu_s += time.process_time() - start
    print_report(cpu_s)


if __name__ == "__main__":
    main()
