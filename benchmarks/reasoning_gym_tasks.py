"""A small model for three of reasoning-gym's tasks: a random Qwen2, and rows to fine-tune it on.

    .venv/bin/python benchmarks/reasoning_gym_tasks.py FOLDER

Writes `FOLDER/random-3m`, a Qwen2 of three million parameters with a BPE tokenizer fitted to the
train split, and `FOLDER/sft.jsonl`, the train split's prompts with the package's own answers, and
prints the `countdown-train run` command that fine-tunes the model on them, trains it for 20 steps
and measures it before and after on the test split, of which it has seen nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

from random_model import make_random_model  # noqa: E402

from flows.settings.compose import compose  # noqa: E402
from rl_core.data.dataset import read_solved  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

TASKS = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "leg_counting": {"min_animals": 1, "max_animals": 2, "max_instances": 5},
    "spell_backward": {"min_word_len": 3, "max_word_len": 5},
}
DATA = (
    "env=reasoning_gym",
    f"env.task=[{','.join(TASKS)}]",
    "env.config=" + str(TASKS).replace("'", ""),
    "env.prompt_template=base",
    "data.train_size=3000",
    "data.test_size=300",
    "data.train_batch_size=32",
    "actor.mini_batch_size=32",
    "data.max_prompt_length=256",
    "data.max_response_length=24",
)
TRAINING = (
    "sft.steps=250",
    "sft.lr=2e-3",
    "sft.warmup_steps=20",
    "algorithm.estimator=grpo",
    "algorithm.group_size=8",
    "algorithm.kl_mode=none",
    "actor.lr=3e-4",
    "rollout.engine=hf",
    "rollout.num_engines=1",
    "rollout.max_num_seqs=256",
    "evaluation.samples_per_problem=1",
    "trainer.total_steps=20",
    "trainer.test_freq=10",
    "trainer.save_freq=20",
    "trainer.test_problems=300",
)


def main() -> None:
    """Makes both, and prints the command."""
    root = Path(sys.argv[1])
    rows = [
        {
            "prompt": problem.messages[0]["content"],
            "response": f" </think> <answer>{answer}</answer>",
        }
        for problem, answer in read_solved(
            generate_dataset(compose([*DATA, f"storage.root={root}"])) / "train.parquet"
        )
    ]
    file = root / "sft.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_random_model([row["prompt"] + row["response"] for row in rows], root / "random-3m")
    own = (f"storage.root={root}", f"model.path={root / 'random-3m'}", f"sft.data={file}")
    command = [*DATA, *TRAINING, *own, "run_id=three-tasks"]
    quoted = [f"'{text}'" if set(text) & set("{[ ") else text for text in command]
    print("countdown-train run", " ".join(quoted))


if __name__ == "__main__":
    main()
