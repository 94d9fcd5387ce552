"""What does training find after SFT? A random model, trained alone and after SFT.

    .venv/bin/python benchmarks/sft_then_ppo.py FOLDER SEEDS ARM[,ARM...] [KEY=VALUE ...]

FOLDER gets a random Qwen2 of 0.8 million parameters with a BPE tokenizer fitted to the prompts and
traces of the train split, and all runs. The arms ask the same problems and start from the same
weights; SFT is done once, since its seed is not the run's. Prints each run's held-out accuracy
before and after training, with 95% intervals.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

from random_model import make_random_model  # noqa: E402

from flows.settings.compose import compose  # noqa: E402
from rl_core.data.dataset import read_solved  # noqa: E402
from rl_core.envs import env_of  # noqa: E402
from rl_core.evaluation.statistics import wilson_interval  # noqa: E402
from rl_core.runs.run_folder import RunFolder  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

SETTINGS = (
    "preset=quickstart",
    "env.max_number=12",
    "data.train_size=2600",  # of 3,270 that there are, with the test split
    "data.max_prompt_length=128",
    "data.max_response_length=160",
    "data.train_batch_size=128",
    "actor.mini_batch_size=64",
    "rollout.num_engines=1",
    "rollout.engine=hf",
    "rollout.max_num_seqs=128",
    "resources.learner_threads=1",
    "trainer.total_steps=24",
    "trainer.test_freq=8",
    "trainer.save_freq=1000",
    "trainer.test_problems=512",
)
SFT = (
    "sft.data=traces",
    "sft.give_up_prob=0.5",
    "sft.steps=700",
    "sft.lr=3e-3",
    "sft.warmup_steps=40",
    "sft.save_freq=200",
    "sft.held_out=64",
)
GRPO = ("algorithm.estimator=grpo", "algorithm.group_size=8", "data.train_batch_size=16")
ARMS = {
    "ppo": (),
    "sft-ppo": SFT,
    "sft-grpo": (*SFT, *GRPO, "actor.mini_batch_size=8"),
}
TEXTS = 2_000


def merged(*settings: str) -> list[str]:
    """Returns each setting once, as it stands last."""
    return [*{text.partition("=")[0]: text for text in settings}.values()]


def make_model(settings: list[str], folder: Path) -> None:
    """Writes a model that knows nothing, its tokenizer made for what it is asked."""
    config = compose(merged(*SFT, *settings))
    problems = read_solved(generate_dataset(config) / "train.parquet")[:TEXTS]
    write = env_of(config.env).write_trace
    assert write is not None, "Countdown has traces"
    rng = random.Random(0)
    texts = [problem.messages[0]["content"] for problem, _ in problems]
    texts += [write(config.env, *pair, rng, config.sft.give_up_prob) for pair in problems]
    # With a token for each number, sums are learned in few steps; spelt ones take too many.
    make_random_model(texts, folder, hidden_size=128, digits_per_token=3)


def accuracies(run: RunFolder) -> list[str]:
    """Returns the first and the last held-out accuracy, each with its interval."""
    tests = [row["val/accuracy"] for row in run.metrics.read() if "val/accuracy" in row]
    asked = 512
    shown = []
    for accuracy in (tests[0], tests[-1]):
        low, high = wilson_interval(round(accuracy * asked), asked)
        shown.append(f"{accuracy:.3f} ({low:.3f} to {high:.3f})")
    return shown


def main() -> None:
    """Runs the arms for each seed."""
    folder, seeds, arms, *more = sys.argv[1:]
    root, model = Path(folder), Path(folder) / "random"
    shared = merged(*SETTINGS, f"storage.root={root}", f"model.path={model}", *more)
    if not model.exists():
        make_model(shared, model)
    print("| seed | | before | after | wall s |\n|---|---|---|---|---|")
    for seed in range(int(seeds)):
        for name in arms.split(","):
            started, run_id = time.monotonic(), f"{name}-{seed}"
            settings = merged(*shared, *ARMS[name], *more, f"seed={seed}", f"run_id={run_id}")
            command = [str(Path(sys.executable).with_name("countdown-train")), "train", *settings]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            before, after = accuracies(RunFolder.under(root, run_id))
            print(
                f"| {seed} | {name} | {before} | {after} | {time.monotonic() - started:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
