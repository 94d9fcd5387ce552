"""What all parts share: the device, random models without a hub, random rollouts, learners.

The device is a parameter everywhere. On a CPU shapes are tiny.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from rl_core.batch import TrainBatch, collate
from rl_core.config.run import RunConfig
from rl_core.resources.model_shape import known_config
from rl_core.types import Completion, Problem, Rollout, ScoredText

Sections = Mapping[str, Mapping[str, Any]]

TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Bench:
    """The device and the folder of a part."""

    device: torch.device
    folder: Path
    """For models and checkpoints; gone when the part has ended."""

    @property
    def on_card(self) -> bool:
        """Whether the device is a card; on a CPU it is a rehearsal."""
        return self.device.type == "cuda"

    def config(self, sections: Sections, *, on_card: bool | None = None) -> RunConfig:
        """Returns settings whose learner computes on the device, or as `on_card` says."""
        on_card = self.on_card if on_card is None else on_card
        resources = {"learner_gpus": float(on_card), "learner_threads": 1}
        whole = {name: dict(section) for name, section in sections.items()}
        whole["resources"] = resources | whole.get("resources", {})
        whole["checkpoints"] = {"in_background": False} | whole.get("checkpoints", {})
        return RunConfig.model_validate(whole)

    def model(self, name: str, shape: Mapping[str, Any] | None = None) -> Path:
        """Writes a random Qwen2, once, and returns its folder.

        Args:
            name: of the folder; a hub model's stands for its published shape.
            shape: fields of its `config.json`, by default those of that hub model, whose file is in
                bfloat16.
        """
        folder = self.folder / name
        if folder.exists():
            return folder
        fields = dict(known_config(name) or {} if shape is None else shape)
        fields.pop("model_type", None)
        config = transformers.Qwen2Config(
            **fields, max_position_embeddings=4_096, initializer_range=0.05
        )
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(0)
        with self.device:
            dtype = torch.bfloat16 if shape is None else torch.float32
            model = transformers.Qwen2ForCausalLM._from_config(config, dtype=dtype)
        model.generation_config.eos_token_id = 1
        model.save_pretrained(folder)
        return folder

    def synchronize(self) -> None:
        """Waits for the device's queue."""
        if self.on_card:
            torch.cuda.synchronize(self.device)

    @contextmanager
    def timed(self, seconds: list[float]) -> Iterator[None]:
        """Appends the block's seconds, the device's queue included."""
        self.synchronize()
        start = time.perf_counter()
        yield
        self.synchronize()
        seconds.append(time.perf_counter() - start)


def random_rollouts(
    num_groups: int,
    group_size: int,
    *,
    prompt: tuple[int, int],
    response: tuple[int, int],
    vocab_size: int,
    seed: int = 0,
) -> list[Rollout]:
    """Returns random rollouts; one in four is correct, the longest are truncated.

    Args:
        num_groups: prompts.
        group_size: responses to each.
        prompt: fewest and most tokens.
        response: fewest and most tokens; at least one response has the most.
        vocab_size: of the model.
        seed: of all that is random.
    """
    draw = np.random.default_rng(seed)
    rollouts: list[Rollout] = []
    for group in range(num_groups):
        prompt_ids = draw.integers(2, vocab_size, draw.integers(*prompt, endpoint=True))
        for sample in range(group_size):
            length = draw.integers(*response, endpoint=True) if rollouts else response[1]
            logprobs = draw.normal(-math.log(vocab_size), 0.1, length).astype(np.float32)
            is_correct = not rollouts or draw.random() < 0.25
            score = 1.0 if is_correct else 0.1 * draw.integers(2)
            completion = Completion(
                draw.integers(2, vocab_size, length),
                logprobs,
                "length" if length == response[1] else "stop",
            )
            rollouts.append(
                Rollout(
                    Problem(group, "random", (), "", 0),
                    group,
                    sample,
                    "",
                    tuple(prompt_ids.tolist()),
                    completion,
                    "",
                    ScoredText(score, "correct" if is_correct else "wrong_value", None),
                )
            )
    return rollouts


def random_batch(num_groups: int, group_size: int, **sizes: Any) -> TrainBatch:
    """Returns `random_rollouts` as a batch on the CPU."""
    return collate(random_rollouts(num_groups, group_size, **sizes))


def merged(*parts: Sections) -> dict[str, dict[str, Any]]:
    """Returns sections of settings, those of later parts on top."""
    whole: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, section in part.items():
            whole[name] = whole.get(name, {}) | dict(section)
    return whole
