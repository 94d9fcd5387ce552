"""`maxrl` and `grpo` compared on problems that a base model rarely solves.

python -m benchmarks.rare_successes MODEL DATA FOLDER STEPS [KEY=VALUE]...

MODEL and DATA are a home-made model and its data set. Of DATA's problems those are kept that MODEL
solves at most once in 16 samples: 384 to test, 1,536 to train on. Each run prints one line.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import polars as pl

from rl_core import train
from rl_core.data.dataset import read_problems
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.envs import find_env
from rl_core.evaluation.statistics import pass_at_k
from rl_core.rollout.collector import build_requests
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.types import Problem, SamplingSettings

SEEDS = (0, 1, 2)
SCREENED, KEPT, TESTS, SAMPLES = 3_200, 1_920, 384, 16
LONGEST = 128
SETTINGS = {
    "algorithm.group_size": 16,
    "data.train_batch_size": 32,
    "data.max_prompt_length": 64,
    "data.max_response_length": LONGEST,
    "actor.mini_batch_size": 16,
    "actor.lr": 5e-4,
    "resources.learner_threads": 1,
    "resources.rollout_threads": 1,
    "trainer.test_problems": 64,
}


def num_solved(model: Path, problems: Sequence[Problem], samples: int, seed: int) -> list[int]:
    """Returns of each problem how many of so many sampled responses are correct."""
    tokenizer = load_tokenizer(str(model))
    decode, _ = text_codec(tokenizer)
    engine = HfEngine(model, dtype="float32", max_num_seqs=256, on_gpu=False)
    questions = prompted(problems, tokenizer, chat_template=False)
    requests = build_requests(questions, group_size=samples, seed=seed, step=0)
    completions = in_order(engine.generate(requests, SamplingSettings(LONGEST)))
    score = find_env("countdown")().score
    texts = [decode(done.response_ids.tolist()) for done in completions]
    truths = [problem.ground_truth for problem in problems for _ in range(samples)]
    right = [score(*pair).verdict == "correct" for pair in zip(texts, truths, strict=True)]
    return [sum(right[i : i + samples]) for i in range(0, len(right), samples)]


def hard_problems(model: Path, data: Path, folder: Path) -> None:
    """Writes the data set of what the model solves at most once."""
    rows = pl.read_parquet(data / "train.parquet").head(SCREENED)
    solved = num_solved(model, read_problems(data / "train.parquet")[:SCREENED], SAMPLES, 1)
    hard = rows.filter(pl.Series(solved) <= 1).head(KEPT)
    folder.mkdir(parents=True)
    hard.head(TESTS).write_parquet(folder / "test.parquet")
    hard.tail(-TESTS).write_parquet(folder / "train.parquet")
    print(f"{len(hard)} of {len(rows)} problems, base {fmean(solved) / SAMPLES:.3f} on all")


def report(name: str, model: Path, tests: Sequence[Problem]) -> None:
    """Prints the model's pass@1 and pass@8 on the tests, of 16 samples."""
    solved = num_solved(model, tests, SAMPLES, 2)
    chances = {k: fmean(pass_at_k(SAMPLES, n, k) for n in solved) for k in (1, 8)}
    print(json.dumps({"run": name} | {f"pass@{k}": round(v, 4) for k, v in chances.items()}))


def main() -> None:
    """Runs each seed with both estimators."""
    os.environ["OMP_NUM_THREADS"] = "1"
    model, data, folder = map(Path, sys.argv[1:4])
    steps = int(sys.argv[4])
    given = dict(item.split("=", 1) for item in sys.argv[5:])
    if not folder.exists():
        hard_problems(model, data, folder)
    tests = read_problems(folder / "test.parquet")
    report("base", model, tests)
    for seed in SEEDS:
        for estimator in ("grpo", "maxrl"):
            name = f"{estimator}-{seed}-{steps}"
            settings = SETTINGS | {"algorithm.estimator": estimator, "seed": seed}
            run = train(
                model=model,
                problems=folder,
                steps=steps,
                settings=settings | {"trainer.test_freq": steps} | given,
                run_id=name,
                root=folder / "outputs",
            )
            report(name, run.checkpoint, tests)


if __name__ == "__main__":
    main()
