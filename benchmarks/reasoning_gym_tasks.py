"""A small model for three of reasoning-gym's tasks: fine-tuned on answers, then trained by GRPO.

    .venv/bin/python benchmarks/reasoning_gym_tasks.py FOLDER [KEY=VALUE ...]

FOLDER gets a random Qwen2 of 0.8 million parameters with a BPE tokenizer fitted to the train split,
`sft.jsonl`, the train split's prompts with the package's own answers, and the run. Prints greedy
accuracy by task before and after training, with 95% intervals, on the test split, which the
model has never seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

import polars as pl  # noqa: E402  # reads its settings from the environment on import
from random_model import make_random_model  # noqa: E402

from flows.settings.compose import compose  # noqa: E402
from rl_core.data.dataset import read_solved  # noqa: E402
from rl_core.evaluation.statistics import wilson_interval  # noqa: E402
from rl_core.runs.run_folder import RunFolder  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

TASKS = {
    "aiw": {},
    "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
    "leg_counting": {"min_animals": 1, "max_animals": 2, "max_instances": 3},
}
SETTINGS = (
    "env=reasoning_gym",
    f"env.task=[{','.join(TASKS)}]",
    "env.config=" + str(TASKS).replace("'", ""),
    "env.prompt_template=base",
    "data.train_size=3000",
    "data.test_size=450",
    "data.train_batch_size=64",
    "data.max_prompt_length=256",
    "data.max_response_length=16",
    "sft.steps=150",
    "sft.lr=3e-3",
    "sft.warmup_steps=20",
    "algorithm.estimator=grpo",
    "algorithm.group_size=8",
    "algorithm.kl_mode=none",
    "actor.lr=3e-4",
    "actor.mini_batch_size=64",
    "actor.micro_batch_tokens=2048",
    "actor.entropy_coef=0",
    "rollout.engine=hf",
    "rollout.num_engines=1",
    "rollout.max_num_seqs=512",
    "resources.learner_threads=1",
    "resources.rollout_threads=1",
    "evaluation.samples_per_problem=1",
    "trainer.total_steps=60",
    "trainer.test_freq=20",
    "trainer.save_freq=60",
    "trainer.test_problems=450",
    "run_id=three-tasks",
)


def prepare(config_texts: list[str], root: Path) -> None:
    """Writes the random model, and the data for its fine-tuning."""
    data = generate_dataset(compose(config_texts))
    rows = [
        {
            "prompt": problem.messages[0]["content"],
            "response": f" </think> <answer>{answer}</answer>",
        }
        for problem, answer in read_solved(data / "train.parquet")
    ]
    (root / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [row["prompt"] + row["response"] for row in rows]
    make_random_model(texts, root / "random", hidden_size=128, digits_per_token=3, vocab_size=800)


def shown(answers: pl.DataFrame) -> str:
    """Returns an accuracy with its interval."""
    right = answers.filter(pl.col("verdict") == "correct").height
    low, high = wilson_interval(right, len(answers))
    return f"{right / len(answers):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Trains, and prints the table."""
    root = Path(sys.argv[1])
    own = (f"storage.root={root}", f"model.path={root / 'random'}", f"sft.data={root}/sft.jsonl")
    by_key = {text.partition("=")[0]: text for text in (*SETTINGS, *own, *sys.argv[2:])}
    settings = [*by_key.values()]
    if not (root / "sft.jsonl").exists():
        prepare([text for text in settings if not text.startswith(("sft.", "model."))], root)
    command = str(Path(sys.executable).with_name("countdown-train"))
    subprocess.run([command, "run", *settings], check=True)
    run = RunFolder.under(root, by_key["run_id"].partition("=")[2])
    files = sorted((run.path / "eval").glob("*.parquet"))
    rows = pl.concat(pl.read_parquet(file) for file in files).filter(pl.col("mode") == "greedy")
    print("| task | before | after |\n|---|---|---|")
    for task in (*TASKS, "all"):
        of_task = rows if task == "all" else rows.filter(pl.col("data_source").str.ends_with(task))
        trained = pl.col("model") != "base"
        print(f"| {task} | {shown(of_task.filter(~trained))} | {shown(of_task.filter(trained))} |")


if __name__ == "__main__":
    main()
