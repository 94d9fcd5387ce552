"""What a save costs the training loop, and what it costs in all, beside transformers' own.

    .venv/bin/python benchmarks/checkpoints.py [--gib 1] [--rounds 5] [--threads 2] [--folder DIR]

A learner of Qwen2's shape with AdamW's state takes snapshots and writes them as a run does: into a
temporary folder, hashed, fsynced, renamed, then read back from the disk and verified. The peer is
`save_pretrained` of the weights alone, which neither fsyncs nor verifies. Seconds per GB written or
copied, in turn: medians and, as other work on the machine disturbs all of it, the best round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rl_core.process_env import apply_defaults

apply_defaults()

import torch  # noqa: E402  # reads its settings from the environment on import
import transformers  # noqa: E402

from rl_core.batch import TrainBatch  # noqa: E402
from rl_core.checkpoints import list_checkpoints, save_checkpoint  # noqa: E402
from rl_core.config import RunConfig  # noqa: E402
from rl_core.learner import Learner  # noqa: E402
from rl_core.manifest import find_damage  # noqa: E402
from rl_core.memory_plan import ModelShape  # noqa: E402

SHAPE = {
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
}
TARGET = 0.15
"""Seconds of stall per GB."""


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


def seconds(work: Callable[[], object]) -> float:
    """Returns how long the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(root: Path, gib: float, rounds: int, num_threads: int) -> dict[str, list[float]]:
    """Returns the seconds per GB of each round, by what was done."""
    model = root / "model"
    make_model(model, gib)
    learner = learner_with_state(model, num_threads)
    peer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    results: dict[str, list[float]] = {
        name: [] for name in ("first snapshot", "snapshot", "write", "verify", "save_pretrained")
    }
    for step in range(rounds + 1):
        stall = seconds(learner.snapshot)
        writing = seconds(lambda s=step: save_checkpoint(root, s, learner.write_snapshot, None))  # type: ignore[misc]
        checkpoint = list_checkpoints(root)[-1]
        verifying = seconds(lambda c=checkpoint: find_damage(c.path, from_disk=True))  # type: ignore[misc]
        theirs = root / f"peer_{step}"
        plain = seconds(lambda folder=theirs: peer.save_pretrained(folder))  # type: ignore[misc]
        gb = checkpoint.size_bytes / 1e9
        peer_gb = sum(file.stat().st_size for file in theirs.iterdir()) / 1e9
        results["snapshot" if step else "first snapshot"].append(stall / gb)
        for name, per_gb in (
            ("write", writing / gb),
            ("verify", verifying / gb),
            ("save_pretrained", plain / peer_gb),
        ):
            results[name].append(per_gb)
        for folder in (checkpoint.path, theirs):
            for file in folder.rglob("*.*"):
                file.unlink()
        print(json.dumps({"gb": round(gb, 2)} | {k: v[-1] for k, v in results.items() if v}))
    return results


def main() -> None:
    """Prints a line per round, then the table."""
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
    peer = {of: of(results["save_pretrained"]) for of in (statistics.median, min)}
    print(
        f"\n{'who waits':10} {'what, s/GB':46} {'median':>7} {'ratio':>6} {'best':>7} {'ratio':>6}"
    )
    for name, who, words in (
        ("first snapshot", "the loop", "first snapshot, fresh memory"),
        ("snapshot", "the loop", f"later snapshots (target {TARGET})"),
        ("write", "a thread", "write, hash, fsync, rename"),
        ("verify", "a thread", "read back and compare hashes"),
        ("save_pretrained", "its caller", "transformers, weights alone, no fsync"),
    ):
        median, best = statistics.median(results[name]), min(results[name])
        ratios = median / peer[statistics.median], best / peer[min]
        print(f"{who:10} {words:46} {median:7.3f} {ratios[0]:6.2f} {best:7.3f} {ratios[1]:6.2f}")


if __name__ == "__main__":
    main()
