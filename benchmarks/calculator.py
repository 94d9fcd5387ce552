"""What a calculator is worth: Countdown with one turn, and with calls that the env answers.

    .venv/bin/python benchmarks/calculator.py [--max-turns N] [--seeds 1] [KEY=VALUE ...]

For each number of turns a home-made base model that knows the calculator, or has to calculate by
itself, from the same puzzles by as many steps; then PPO. Greedy answers to the same test problems,
in this process, without Ray.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

import numpy as np  # noqa: E402
import torch  # noqa: E402  # reads its settings from the environment on import

from flows.settings.compose import compose  # noqa: E402
from rl_core.batch import collate  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.data.sampling import Place, ProblemOrder  # noqa: E402
from rl_core.envs.countdown.traces import check_response  # noqa: E402
from rl_core.evaluation.statistics import wilson_interval  # noqa: E402
from rl_core.learner.learner import Learner  # noqa: E402
from rl_core.rewards.scoring import Rewards, start_rewards  # noqa: E402
from rl_core.rollout.collector import collect, read_answers, to_rollouts  # noqa: E402
from rl_core.rollout.hf_engine import HfEngine  # noqa: E402
from rl_core.rollout.turns import TurnTaking  # noqa: E402
from rl_core.trainer import TrainInputs  # noqa: E402
from rl_core.training import load_inputs  # noqa: E402
from rl_core.types import GenerationRequest, Rollout, SamplingSettings  # noqa: E402
from tasks.base_model import base_model  # noqa: E402
from tasks.generate import generate_dataset  # noqa: E402

_SETTINGS = (
    *("preset=quickstart", "base_model.steps=300", "base_model.num_threads=1"),
    *("data.max_response_length=352", "base_model.max_response_tokens=352"),
    *("data.test_size=256", "data.train_batch_size=128", "trainer.total_steps=10"),
    *("resources.learner_threads=1", "rollout.engine=hf"),
)


@dataclass(frozen=True)
class Arm:
    """A model in this process, and what it is asked."""

    config: RunConfig
    inputs: TrainInputs
    engine: HfEngine
    rewards: Rewards

    def test(self) -> str:
        """Returns what greedy answers to the test problems are worth, as cells of a table."""
        inputs, problems = self.inputs, [item.problem for item in self.inputs.test]
        turns = TurnTaking(self.config.env, inputs.decode, inputs.encode)
        requests = [GenerationRequest(item.prompt_ids, seed=0) for item in inputs.test]
        greedy = SamplingSettings(self.config.data.max_response_length, temperature=0.0)
        ended = turns.play(self.engine.generate, requests, greedy, problems)
        answers = read_answers(ended, problems, decode=inputs.decode, rewards=self.rewards)
        return cells(to_rollouts(inputs.test, answers, self.config.env, group_size=1))

    def learn(self, learner: Learner) -> None:
        """Does all steps of PPO."""
        start = Place(self.config.seed, len(self.inputs.train))
        order = ProblemOrder(start, self.config.data.train_batch_size)
        for step in range(1, (self.config.trainer.total_steps or 0) + 1):
            chosen = order.choose(step)
            collected = collect(
                self.config,
                self.inputs.train,
                chosen,
                step,
                stream=self.engine.generate,
                decode=self.inputs.decode,
                encode=self.inputs.encode,
                rewards=self.rewards,
                clock=lambda phase: nullcontext(),
            )
            learner.learn(collate(collected.rollouts, 0))
            self.engine.update_weights(learner.weights())
            sys.stderr.write(f"step {step}: {collected.metrics['reward/accuracy']:.3f}\n")


def cells(rollouts: Sequence[Rollout]) -> str:
    """Returns accuracy with its interval, true results, and a response's length in tokens."""
    num_correct = sum(r.scored.verdict == "correct" for r in rollouts)
    low, high = wilson_interval(num_correct, len(rollouts))
    checks = [check_response(r.response_text) for r in rollouts]
    true = sum(c.num_true_equations for c in checks) / max(sum(c.num_equations for c in checks), 1)
    right = sum(c.num_right_verdicts for c in checks) / max(sum(c.num_verdicts for c in checks), 1)
    sampled = float(np.mean([r.completion.num_sampled for r in rollouts]))
    said = float(np.mean([len(r.completion.response_ids) for r in rollouts])) - sampled
    calls = float(np.mean([len(r.completion.turns) // 2 for r in rollouts]))
    return (
        f"{num_correct / len(rollouts):.3f} ({low:.3f} to {high:.3f}) | {true:.3f} | {right:.3f} "
        f"| {sampled:.0f} + {said:.0f} | {calls:.1f}"
    )


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-turns", type=int, action="append", help="1 and 40")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = sys.stdout
    out.write(
        "| turns | seed | model | accuracy | true results | right verdicts | tokens, the env's | "
        "calls | CPU s |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    for seed in range(given.seeds):
        for max_turns in given.max_turns or (1, 40):
            with tempfile.TemporaryDirectory() as folder:
                own = [f"env.max_turns={max_turns}", f"storage.root={folder}"]
                seeds = [f"seed={seed}", f"base_model.seed={seed}"]
                words = [*_SETTINGS, *seeds, *given.settings, *own]
                # The last wins.
                config = compose(list({w.partition("=")[0]: w for w in words}.values()))
                for model, shown, seconds in run(config):
                    out.write(f"| {max_turns} | {seed} | {model} | {shown} | {seconds:.0f} |\n")
                    out.flush()


def run(config: RunConfig) -> list[tuple[str, str, float]]:
    """Returns (model, cells, CPU seconds that it took) of base and trained model."""
    start = time.process_time()
    data = generate_dataset(config)
    folder = base_model(config, data)
    made = time.process_time()
    engine = HfEngine(folder, dtype="float32", max_num_seqs=128, on_gpu=False)
    with start_rewards(config.env) as rewards:
        arm = Arm(config, load_inputs(config, data, Path(folder)), engine, rewards)
        base = arm.test()
        sys.stderr.write(f"{base}\n")
        before = time.process_time()
        arm.learn(Learner(config, folder))
        learned = time.process_time()
        return [("base", base, made - start), ("after PPO", arm.test(), learned - before)]


if __name__ == "__main__":
    main()
