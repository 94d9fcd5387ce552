"""What a save costs the training loop and in total, compared with transformers' own.

    .venv/bin/python benchmarks/checkpoints.py [--gib 1] [--rounds 5] [--threads 2] [--folder DIR]

A learner of Qwen2's shape with AdamW's state takes snapshots and writes them as a run does: into a
temporary folder, summed, fsynced, renamed, then read back from the disk and verified. The peer is
`save_pretrained` of only the weights, which neither fsyncs nor verifies. Prints seconds per GB
written or copied, in turn: medians and, as other work on the machine disturbs them, the best round.
The stall's target is 0.15 s per GB, or what a plain copy of as many bytes takes in the same rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rl_core.system.process_env import apply_defaults

apply_defaults()

import torch  # noqa: E402  # reads its settings from the environment on import
import transformers  # noqa: E402

from rl_core.batch import TrainBatch  # noqa: E402
from rl_core.checkpoints.manifest import find_damage  # noqa: E402
from rl_core.checkpoints.store import save_checkpoint  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.learner.learner import Learner  # noqa: E402
from rl_core.resources.memory_plan import ModelShape  # noqa: E402

SHAPE = {
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
}
PEER, PLAIN = "save_pretrained", "plain copy"
TARGET = 0.15
"""Seconds per GB that the loop may wait, or those of a plain copy if they are more."""
ROWS = {
    "reserve": "memory made ready, by a thread",
    "snapshot": "snapshot: the stall",
    PLAIN: "plain copy of as many bytes",
    "write": "write, checksum, fsync, by a thread",
    "verify": "read back, checksum, by a thread",
    PEER: "transformers, no fsync, a stall",
}


def make_model(folder: Path, gib: float) -> None:
    """Writes a random Qwen2 of about so many GiB of float32 weights."""

    def num_bytes(num_layers: int) -> int:
        config = transformers.Qwen2Config(**SHAPE, num_hidden_layers=num_layers)
        return 4 * ModelShape.from_config(config.to_dict()).num_parameters

    num_layers = 1
    while num_bytes(num_layers) < gib * 2**30:
        num_layers += 1
    config = transformers.Qwen2Config(**SHAPE, num_hidden_layers=num_layers)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def learner_with_state(model: Path, num_threads: int) -> Learner:
    """Returns a learner that has made one small step, so that its optimizer has a state."""
    config = RunConfig.model_validate(
        {
            "data": {"train_batch_size": 1, "max_prompt_length": 4, "max_response_length": 4},
            "actor": {"mini_batch_size": 1},
            "algorithm": {"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
            "resources": {"learner_threads": num_threads},
        }
    )
    learner = Learner(config, model)
    four, no = torch.full((2,), 4), torch.zeros(2, dtype=torch.bool)
    ids, logprobs = torch.randint(100, (2, 8)), torch.full((2, 4), -10.0)
    scores, group_ids = torch.tensor([0.0, 1.0]), torch.zeros(2, dtype=torch.int64)
    learner.learn(TrainBatch(ids, four, four, logprobs, scores, group_ids, ~no, no))
    return learner


def plain_copy(source: torch.Tensor, target: torch.Tensor, num_threads: int) -> None:
    """Copies one piece of memory into another, with torch's own threads."""
    torch.set_num_threads(num_threads)
    target.copy_(source)
    torch.set_num_threads(1)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the wall seconds and the CPU seconds (of all threads) that the work takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(
    root: Path, gib: float, rounds: int, num_threads: int
) -> dict[str, list[tuple[float, float]]]:
    """Returns wall and CPU seconds per GB of each round, by what was done."""
    model = root / "model"
    make_model(model, gib)
    learner = learner_with_state(model, num_threads)
    peer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}

    def note(name: str, size_bytes: int, work: Callable[[], object]) -> None:
        wall, cpu = (1e9 * taken / size_bytes for taken in seconds(work))
        results[name].append((wall, cpu))
        print(f"{name:16} {size_bytes / 1e9:6.2f} GB {wall:8.3f} s/GB {cpu:8.3f} CPU s/GB")

    # Per parameter a float32 weight and two moments; a model's other files are tiny.
    peer_bytes = 4 * peer.num_parameters()
    size = 3 * peer_bytes
    source, target = torch.ones(size // 4), torch.zeros(size // 4)  # pages in memory
    note("reserve", size, learner.reserve_snapshot)
    for step in range(rounds):
        checkpoint, theirs = root / f"checkpoints/step_{step:06d}", root / f"peer_{step}"
        note("snapshot", size, learner.snapshot)
        note(PLAIN, size, partial(plain_copy, source, target, num_threads))
        note("write", size, partial(save_checkpoint, root, step, learner.write_snapshot, None))
        note("verify", size, partial(find_damage, checkpoint, from_disk=True))
        note("save_pretrained", peer_bytes, partial(peer.save_pretrained, theirs))
        shutil.rmtree(checkpoint)
        shutil.rmtree(theirs)
    return results


def main() -> None:
    """Prints each measurement, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="float32 weights; a third of a save")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="resources.learner_threads")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default a new one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as root:
        results = measure(Path(root), arguments.gib, arguments.rounds, arguments.threads)
    print(f"\n{'':36} {'wall s/GB, of peer':>20} {'best round, of peer':>20} {'CPU, of peer':>16}")
    for name, words in ROWS.items():
        figures = []
        for of, column in ((statistics.median, 0), (min, 0), (statistics.median, 1)):
            ours, peers = (of([row[column] for row in results[n]]) for n in (name, PEER))
            figures.append(f"{ours:10.3f} {ours / peers:8.2f}")
        print(f"{words:36} {'  '.join(figures)}")
    for of, words in ((statistics.median, "median"), (min, "best round")):
        stall, plain = (of(row[0] for row in results[name]) for name in ("snapshot", PLAIN))
        target = max(TARGET, plain)
        verdict = "met" if stall <= target else "NOT met"
        print(f"stall, {words}: {stall:.3f} s/GB, target {target:.3f}: {verdict}")


if __name__ == "__main__":
    main()
