"""What does training find after SFT? A random model with only RL, RL after SFT, and only SFT.

    .venv/bin/python benchmarks/sft_then_ppo.py FOLDER SEED[,SEED...] ARM[,ARM...] [KEY=VALUE ...]

FOLDER gets a random Qwen2 of 0.8 million parameters with a BPE tokenizer fitted to the prompts and
traces of the train split, the model that SFT makes of it, once for all seeds, and all runs. Arms:
`sft-ppo` and `sft-grpo` train that model, `sft-sft` fine-tunes it further instead (its "before" is
after that; then one step of training), `ppo` trains the random model. All get the same problems.
Prints greedy accuracy before and after training on 512 held-out ones, with 95% intervals.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

from random_model import make_random_model  # noqa: E402

from flows.settings.compose import compose  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.data.dataset import read_solved  # noqa: E402
from rl_core.evaluation.statistics import wilson_interval  # noqa: E402
from rl_core.runs.run_folder import RunFolder  # noqa: E402
from tasks.base_model import base_model  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

ASKED = 512
SETTINGS = (
    "preset=quickstart",
    "env.max_number=12",
    "data.train_size=2600",  # of all 3,270, which include the test split
    "data.max_prompt_length=128",
    "data.max_response_length=256",
    "data.train_batch_size=128",
    "actor.mini_batch_size=64",
    "rollout.num_engines=1",
    "rollout.engine=hf",
    "rollout.max_num_seqs=256",
    "resources.learner_threads=1",
    "resources.rollout_threads=1",
    "trainer.total_steps=24",
    "trainer.test_freq=8",
    "trainer.save_freq=1000",
    f"trainer.test_problems={ASKED}",
)
SFT = (
    "sft.data=traces",
    "sft.give_up_prob=0.6",
    "sft.steps=2500",
    "sft.lr=3e-3",
    "sft.warmup_steps=50",
    "sft.save_freq=250",
    "sft.held_out=64",
)
GRPO = (
    "algorithm.estimator=grpo",
    "algorithm.group_size=8",
    "algorithm.kl_mode=none",
    "actor.entropy_coef=0",
    "actor.mini_batch_size=16",
    "data.train_batch_size=32",
)
ARMS = {
    "sft-ppo": (),
    "sft-sft": (*SFT, "sft.steps=650", "sft.lr=1e-3", "trainer.total_steps=1"),
    "sft-grpo": GRPO,
    "ppo": (),
}
TEXTS = 2_000


def merged(*settings: str) -> list[str]:
    """Returns each setting once, with its last value."""
    return [*{text.partition("=")[0]: text for text in settings}.values()]


def make_model(config: RunConfig, data: Path, folder: Path) -> None:
    """Writes a random model, and a tokenizer fitted to its prompts."""
    problems = read_solved(data / "train.parquet")[:TEXTS]
    write = partial(config.env.sft.write_trace, config.env)
    rng = random.Random(0)
    texts = [problem.messages[0]["content"] for problem, _ in problems]
    texts += [write(*pair, rng, config.sft.give_up_prob) for pair in problems]
    # With a token for each number, sums are learned in few steps; spelt ones take too many.
    make_random_model(texts, folder, hidden_size=128, digits_per_token=3, vocab_size=800)


def fine_tuned(settings: list[str], random_model: Path) -> Path:
    """Returns the folder of the model that SFT makes of the random one, both made only once."""
    config = compose(settings)
    data = generate_dataset(config)
    if not random_model.exists():
        make_model(config, data, random_model)
    started = time.monotonic()
    folder = base_model(config, data)
    print(f"SFT: {time.monotonic() - started:.0f} s\n", flush=True)
    return folder


def accuracies(run: RunFolder) -> list[str]:
    """Returns the first and the last held-out accuracy, each with its interval."""
    tests = [row["val/accuracy"] for row in run.metrics.read() if "val/accuracy" in row]
    shown = []
    for accuracy in (tests[0], tests[-1]):
        low, high = wilson_interval(round(accuracy * ASKED), ASKED)
        shown.append(f"{accuracy:.3f} ({low:.3f} to {high:.3f})")
    return shown


def main() -> None:
    """Runs the arms for each seed."""
    folder, seeds, arms, *more = sys.argv[1:]
    root = Path(folder)
    shared = [*SETTINGS, f"storage.root={root}"]
    of_sft, rest = ([t for t in more if t.startswith("sft.") == is_sft] for is_sft in (True, False))
    alone = f"model.path={root / 'random'}"
    tuned = fine_tuned(merged(*shared, alone, *SFT, *rest, *of_sft), root / "random")
    print("| seed | | before | after | wall s |\n|---|---|---|---|---|")
    for seed in seeds.split(","):
        for name in arms.split(","):
            started, run_id = time.monotonic(), f"{name}-{seed}"
            model = alone if name == "ppo" else f"model.path={tuned}"
            own = (model, *ARMS[name], *rest, f"seed={seed}", f"run_id={run_id}")
            command = [str(Path(sys.executable).with_name("countdown-train")), "train"]
            subprocess.run(
                [*command, *merged(*shared, *own)], check=True, stdout=subprocess.DEVNULL
            )
            before, after = accuracies(RunFolder.under(root, run_id))
            print(
                f"| {seed} | {name} | {before} | {after} | {time.monotonic() - started:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
