"""What the caches of prepared matrix products cost a learner in memory and save in time.

    .venv/bin/python benchmarks/memory_caches.py [--steps 60] [--bounds 1024:1024 64:16 ...]
        [--rollouts 256]

oneDNN keeps the code of each product that it has prepared, one entry per shape, and torch keeps
such entries too; rollouts are ragged, so nearly every micro-batch has new shapes. Each
contestant is a process with its own bounds (`ONEDNN_PRIMITIVE_CACHE_CAPACITY` and
`LRU_CACHE_CAPACITY`; 1024:1024 is the libraries' default) that trains a random model of
quickstart's size on quickstart's batches, the same ones for all, with one thread. They take
turns, a step each. The table gives CPU seconds per step, the process's own memory after a quarter
of the steps and at the end, its growth per step over the second half, and whether the weights are
those of the first contestant, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

BOUNDS: Final = ("1024:1024", "256:64", "128:32", "64:16", "32:8")
OVERRIDES: Final = ("preset=quickstart", "resources.learner_threads=1")
_MIB: Final = 2**20


def train(model: Path, num_rollouts: int) -> None:
    """Trains a step for each line of standard input, and prints after each what it took."""
    from workload import Gate

    from rl_core.system.process_env import apply_defaults, process_environment

    os.environ.update(process_environment(num_threads=1, on_gpu=False))
    apply_defaults()
    import hashlib

    import numpy as np

    from flows.settings.compose import compose
    from rl_core.batch import collate
    from rl_core.learner.learner import Learner
    from rl_core.types import Completion, Problem, Rollout, ScoredText
    from rl_core.workers.actors import PAD_ID

    sizes = (f"data.train_batch_size={num_rollouts}", f"actor.mini_batch_size={num_rollouts // 2}")
    config = compose([*OVERRIDES, *sizes])
    learner, rng, gate = Learner(config, model), np.random.default_rng(0), Gate()

    def rollout(i: int) -> Rollout:
        words = config.base_model.vocab_size
        prompt = tuple(rng.integers(2, words, rng.integers(28, 34)).tolist())
        # Most give up early and some search to the end: the quickstart's lengths, 20 to 128.
        length = min(20 + int(rng.exponential(30)), config.data.max_response_length)
        completion = Completion(
            rng.integers(2, words, length), np.full(length, -6.46, np.float32), "stop"
        )
        score = float(rng.random() < 0.3)
        problem = Problem(i, "benchmark", (), "", 0)
        scored = ScoredText(score, "correct" if score else "wrong_value", None)
        return Rollout(problem, i, 0, "", prompt, completion, "", scored)

    while True:
        if learner.steps_done:
            gate.add("own_bytes", own_bytes())
            digest = hashlib.sha256()
            for tensor in learner.weights().values():
                digest.update(tensor.numpy().tobytes())
            gate.add("weights", int(digest.hexdigest()[:12], 16))
            gate.step_done()
        rollouts = [rollout(i) for i in range(config.data.train_batch_size)]
        experience, _ = learner.make_experience(collate(rollouts, PAD_ID))
        learner.update(experience)


def own_bytes() -> int:
    """Returns the bytes of this process's pages that come from no file."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Contestant:
    """A learner's process."""

    def __init__(self, bounds: str, model: Path, num_rollouts: int) -> None:
        self.bounds = bounds
        primitives, products = bounds.split(":")
        here = Path(__file__).parent
        self._process = subprocess.Popen(
            [sys.executable, __file__, f"--train={model}", f"--rollouts={num_rollouts}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "ONEDNN_PRIMITIVE_CACHE_CAPACITY": primitives,
                "LRU_CACHE_CAPACITY": products,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join((str(here), str(here.parent))),
            },
        )
        self.reports: list[dict[str, Any]] = []
        self.read()

    def read(self) -> dict[str, Any]:
        """Waits for its next report and returns it."""
        line = _stream(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"the learner with {self.bounds} died, see above")
        said: dict[str, Any] = json.loads(line)
        return said

    def step(self) -> None:
        """Makes it train one step."""
        print(file=_stream(self._process.stdin), flush=True)
        self.reports.append(self.read())

    def close(self) -> None:
        """Ends it."""
        _stream(self._process.stdin).close()
        self._process.wait()

    def row(self, weights: list[float]) -> str:
        """Returns its line of the table."""
        memory = [report["phases"]["own_bytes"] / _MIB for report in self.reports]
        half = len(memory) // 2
        growth = (memory[-1] - memory[half]) / max(len(memory) - 1 - half, 1)
        cpu = statistics.mean(report["cpu_s"] for report in self.reports[1:])
        same = [report["phases"]["weights"] for report in self.reports] == weights
        return (
            f"{self.bounds:>10}{cpu:>14.2f}{memory[len(memory) // 4]:>14.0f}{memory[-1]:>12.0f}"
            f"{growth:>16.2f}   {'the same' if same else 'DIFFERENT'}"
        )


def make_model(folder: Path) -> None:
    """Writes a random model of the home-made base model's size, without a tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from flows.settings.compose import compose

    size = compose(OVERRIDES).base_model
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            intermediate_size=size.intermediate_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_heads,
            max_position_embeddings=1024,
            initializer_range=0.06,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def main() -> None:
    """Prints the table, now and then and at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--bounds", nargs="+", default=BOUNDS, metavar="ONEDNN:TORCH")
    parser.add_argument("--rollouts", type=int, default=256, help="per step, in two mini-batches")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.rollouts)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        contestants = [
            Contestant(bounds, Path(folder), options.rollouts) for bounds in options.bounds
        ]
    print(
        f"{'bounds':>10}{'CPU s / step':>14}{'MiB, quarter':>14}{'MiB, end':>12}"
        f"{'MiB more / step':>16}   weights"
    )
    for step in range(1, options.steps + 1):
        for contestant in contestants:
            contestant.step()
        if step % 10 == 0 or step == options.steps:
            first = [report["phases"]["weights"] for report in contestants[0].reports]
            print(f"after {step} steps", *(c.row(first) for c in contestants), sep="\n", flush=True)
    for contestant in contestants:
        contestant.close()


if __name__ == "__main__":
    main()
