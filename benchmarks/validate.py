"""Validation of a full Countdown data set, part by part; prompt lengths beside tokenizing all.

    .venv/bin/python benchmarks/validate.py [--rows 327680] [--tokenizer FOLDER] [--threads 2]

Generates the data set of the default settings first, which is not timed. Without --tokenizer a
byte-level BPE is trained on 2,000 of the prompts, as the home-made base model's is (a prompt is
then some 20 tokens; Qwen2.5's takes 140 to 146). Prints seconds of one run, of all threads; other
load shows in the wall seconds. The peer tokenizes every prompt, as one batch or one by one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

T = TypeVar("T")
TARGET_WALL_S = 5.0
TARGET_RATIO = 50.0


def arguments() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=327_680, help="train rows; 1,024 test rows")
    parser.add_argument("--tokenizer", help="a folder with a model's config and tokenizer")
    parser.add_argument("--data", type=Path, help="a folder with both splits, instead of new ones")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def timed(name: str, work: Callable[[], T]) -> tuple[T, float, float]:
    """Does the work, prints wall and CPU seconds, returns all three."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:<44}{wall:9.2f} wall s{cpu:9.2f} CPU s", flush=True)
    return result, wall, cpu


def limit_threads(threads: int) -> None:
    """Keeps this process, and the pools that libraries start on import, to so many threads."""
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ[name] = str(threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main() -> None:
    """Runs everything and prints the table."""
    options = arguments()
    limit_threads(options.threads)

    from rl_core.config.run import DataConfig, RunConfig
    from rl_core.data.dataset import content_hash, read_verified, write_dataset
    from rl_core.data.prompt_lengths import measure_all
    from rl_core.data.prompts import count_tokens, encode_prompt, load_tokenizer
    from rl_core.data.readers import read_parquet
    from rl_core.envs.countdown.puzzles import solutions_table
    from rl_core.sft.train import train_tokenizer
    from tasks.validate import check_dataset, measure_prompts, run_checks

    config = RunConfig(data=DataConfig(train_size=options.rows, max_prompt_length=1024))
    with tempfile.TemporaryDirectory() as temporary:
        data = options.data or Path(temporary) / "data"
        if options.data is None:
            timed("(generate)", lambda: write_dataset(config.env, config.data, data))
        splits = {split: read_verified(data / f"{split}.parquet") for split in ("train", "test")}
        prompts = pl.concat([pl.DataFrame(table.select(["prompt"])) for table in splits.values()])[
            "prompt"
        ]
        texts = [prompt[0]["content"] for prompt in prompts[:2_000].to_list()]
        tokenizer = (
            load_tokenizer(options.tokenizer)
            if options.tokenizer
            else train_tokenizer(texts, vocab_size=640)
        )
        count = partial(count_tokens, tokenizer=tokenizer, chat_template=False)

        print(f"{len(prompts):,} rows, {options.threads} threads")
        _, wall, _ = timed(
            "validate, all of it; of that:", partial(check_dataset, config, data, count)
        )
        timed("  read, bounded", lambda: [read_parquet(data / f"{s}.parquet") for s in splits])
        timed("  content hash", lambda: [content_hash(table) for table in splits.values()])
        timed("  solutions judged", lambda: solutions_table(splits))
        timed("  all checks, with these", lambda: run_checks(config, data, splits))
        lengths, _, by_parts = timed(
            "  prompt lengths, by parts",
            lambda: measure_prompts(config.env, splits, count, are_templated=True),
        )
        batched, _, batch = timed(
            "beside it, tokenize all, batches", lambda: measure_all(prompts, count)
        )
        some = prompts[: min(20_000, len(prompts))].to_list()
        _, _, single = timed(
            f"tokenize one by one, {len(some):,} of them",
            lambda: [encode_prompt(prompt, tokenizer, chat_template=False) for prompt in some],
        )
        single *= len(prompts) / len(some)
    equal = np.array_equal(lengths["prompt_tokens"].to_numpy(), batched)
    print(f"lengths by parts equal the tokenizer's in all {len(prompts):,} rows: {equal}")
    print(f"validate: {wall:.2f} wall s, target {TARGET_WALL_S}: {verdict(wall < TARGET_WALL_S)}")
    met = verdict(equal and batch >= TARGET_RATIO * by_parts)
    print(f"tokenize all / by parts, CPU s, target {TARGET_RATIO:.0f}: {met}")
    print(f"  {batch / by_parts:.0f} in batches, {single / by_parts:.0f} one by one")


def verdict(met: bool) -> str:
    """Says whether a target is met."""
    return "met" if met else "NOT met"


if __name__ == "__main__":
    main()
