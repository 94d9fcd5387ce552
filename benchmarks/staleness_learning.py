"""What staleness costs learning, at its worst: every token is K updates old.

python benchmarks/staleness_learning.py [--steps 40] [--seeds 3]

A random Qwen2 of some 100,000 parameters learns by GRPO to write even tokens; each seed starts from
other weights. Engine and learner take turns in this process, and the engine has the weights of K
updates before: K = 1 is what `rollout.staleness=1` reaches if the learner is slow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

import numpy as np  # noqa: E402
import torch  # noqa: E402  # reads its settings from the environment on import
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from rl_core.batch import collate  # noqa: E402
from rl_core.config.run import RunConfig  # noqa: E402
from rl_core.learner.learner import Learner  # noqa: E402
from rl_core.rollout.collector import build_requests  # noqa: E402
from rl_core.rollout.hf_engine import HfEngine  # noqa: E402
from rl_core.rollout.protocol import in_order  # noqa: E402
from rl_core.types import (  # noqa: E402
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
    ScoredText,
)

_VOCABULARY, _PROMPTS, _GROUP, _TOKENS, _LAST = 256, 8, 8, 32, 5
_STALENESS = (0, 1, 2, 4, 8)


def write_model(folder: Path, seed: int) -> None:
    """Writes a random model whose responses never end by themselves."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=_VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=[])
    model.save_pretrained(folder)


def settings(seed: int, lr: float) -> RunConfig:
    """Returns the settings of one of the runs."""
    return RunConfig.model_validate(
        {
            "seed": seed,
            "algorithm": {"estimator": "grpo", "group_size": _GROUP, "kl_mode": "none"},
            "data": {"train_batch_size": _PROMPTS, "max_response_length": _TOKENS},
            "actor": {"lr": lr, "mini_batch_size": _PROMPTS},
            "rollout": {"engine": "hf"},
            "resources": {"learner_threads": 1},
        }
    )


def learn(config: RunConfig, model: Path, staleness: int, steps: int) -> list[float]:
    """Returns the share of even tokens in each step's rollouts."""
    scores = []
    engine = HfEngine(model, dtype="float32", max_num_seqs=_PROMPTS * _GROUP, on_gpu=False)
    learner = Learner(config, model)
    numbers = np.random.default_rng(config.seed)
    problems = [
        PromptedProblem(
            Problem(i, "benchmark", (), "", 0),
            "",
            tuple(int(n) for n in numbers.integers(0, _VOCABULARY, 8)),
        )
        for i in range(_PROMPTS)
    ]
    past = deque([_copied(learner.weights())], maxlen=staleness + 1)
    for step in range(1, steps + 1):
        engine.update_weights(past[0])
        requests = build_requests(problems, group_size=_GROUP, seed=config.seed, step=step)
        answers = in_order(engine.generate(requests, SamplingSettings(_TOKENS, 1.0)))
        even = [float(np.mean(answer.response_ids % 2 == 0)) for answer in answers]
        scores.append(float(np.mean(even)))
        rollouts = [
            Rollout(
                problem=problems[i // _GROUP].problem,
                group_id=i // _GROUP,
                sample_index=i % _GROUP,
                prompt_text="",
                prompt_ids=problems[i // _GROUP].prompt_ids,
                completion=answer,
                response_text="",
                scored=ScoredText(share, "correct", None),
            )
            for i, (answer, share) in enumerate(zip(answers, even, strict=True))
        ]
        experience, _ = learner.make_experience(collate(rollouts, 0))
        learner.update(experience)
        past.append(_copied(learner.weights()))
    return scores


def _copied(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def main() -> None:
    """Prints a table in Markdown: the mean over seeds, and the least and most of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    given = parser.parse_args()
    out = sys.stdout
    ends = [given.steps // 4, given.steps // 2, given.steps]
    heads = " | ".join(f"steps {end - _LAST + 1} to {end}" for end in ends)
    out.write(f"| K | {heads} |\n|---{'|---' * len(ends)}|\n")
    for staleness in _STALENESS:
        runs = []
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                write_model(Path(folder), seed)
                config = settings(seed, given.lr)
                runs.append(learn(config, Path(folder), staleness, given.steps))
        seen = [np.mean([scores[end - _LAST : end] for scores in runs], axis=1) for end in ends]
        cells = [f"{x.mean():.3f} ({x.min():.3f} to {x.max():.3f})" for x in seen]
        out.write(f"| {staleness} | {' | '.join(cells)} |\n")
        out.flush()


if __name__ == "__main__":
    main()
