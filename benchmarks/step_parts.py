"""CPU seconds of a learner's gradient by micro-batch size: a few layers of SmolLM2's shape.

    OMP_NUM_THREADS=1 python benchmarks/step_parts.py FOLDER LAYERS VOCAB DTYPE REPEATS TOKENS ...

12 x 8 short responses; all sizes in turn, with recomputed layers and without; the least of the
repeats, as a busy machine only adds. FOLDER is where the model is written.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

import torch  # noqa: E402  # reads its settings from the environment on import
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from rl_core.batch import TrainBatch, micro_batches  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.learner.learner import Learner  # noqa: E402

PROMPTS, GROUP = 12, 8


def write_model(folder: Path, layers: int, vocab: int) -> None:
    """Writes a model with random weights."""
    shape = AutoConfig.for_model(
        "llama",
        vocab_size=vocab,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)


def settings(dtype: str, *, recomputes: bool) -> RunConfig:
    """Returns a run's settings."""
    return RunConfig.model_validate(
        {
            "algorithm": {"estimator": "grpo", "group_size": GROUP, "kl_mode": "none"},
            "env": {"name": "custom", "prompt_template": "base"},
            "data": {
                "train_batch_size": PROMPTS,
                "max_prompt_length": 80,
                "max_response_length": 16,
            },
            "actor": {"mini_batch_size": PROMPTS, "entropy_coef": 0.0},
            "model": {"dtype": dtype, "gradient_checkpointing": recomputes},
            "rollout": {"engine": "hf"},
            "resources": {"learner_threads": 1, "rollout_threads": 1},
        }
    )


def make_batch(vocab: int) -> TrainBatch:
    """Returns prompts of 50 to 62 tokens with responses of 10 to 16."""
    rng = random.Random(0)
    rows, prompts, responses = [], [], []
    for _ in range(PROMPTS):
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(50, 62))]
        for _ in range(GROUP):
            response = [rng.randrange(vocab) for _ in range(rng.randint(10, 16))]
            rows.append(prompt + response)
            prompts.append(len(prompt))
            responses.append(len(response))
    longest = max(map(len, rows))
    rewards = torch.tensor([float(i % 2) for i in range(len(rows))])
    return TrainBatch(
        torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
        torch.tensor(prompts),
        torch.tensor(responses),
        torch.full((len(rows), max(responses)), -8.0),
        rewards,
        torch.arange(PROMPTS).repeat_interleave(GROUP),
        rewards > 0.5,
        rewards > 2,
    )


def main() -> None:
    """Prints a line for each size."""
    folder, dtype = Path(sys.argv[1]), sys.argv[4]
    layers, vocab, repeats, *sizes = (int(text) for text in (*sys.argv[2:4], *sys.argv[5:]))
    torch.set_num_threads(1)
    write_model(folder, layers, vocab)
    batch = make_batch(vocab)
    learners = {on: Learner(settings(dtype, recomputes=on), folder) for on in (True, False)}
    seconds: dict[tuple[bool, int, int], list[float]] = {}
    for _ in range(repeats + 1):
        for recomputes, learner in learners.items():
            experience, _ = learner.make_experience(batch)
            for size in sizes:
                parts = [rows for rows, _ in micro_batches(batch, size, share_prompts=True)]
                start = time.process_time()
                learner.updater.accumulate("actor", experience, parts, 0.0)
                seconds.setdefault((recomputes, size, len(parts)), []).append(
                    time.process_time() - start
                )
                for weight in learner.models.actor.parameters():
                    weight.grad = None
    for (recomputes, size, number), taken in seconds.items():
        print(recomputes, size, number, f"{min(taken[1:]):.3f}")  # the first warms up


if __name__ == "__main__":
    main()
