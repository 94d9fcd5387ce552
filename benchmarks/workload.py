"""What all contestants of step_time.py share: the workload, the reward, the start signal.

Standard library only: peers run in environments of their own.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

PROMPT_TOKENS = (95, 105)
RESPONSE_TOKENS = 64
LEARNING_RATE = 1e-6
GRPO_KL_COEF, PPO_KL_COEF = 0.04, 0.05


@dataclass(frozen=True)
class Model:
    """A model with random weights. Its sizes are transformers' names."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 64
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = True

    @property
    def special_tokens(self) -> dict[str, int]:
        """Tokens that no prompt holds; the model samples the first as seldom as any other."""
        return {"<eos>": self.vocab_size - 1, "<pad>": self.vocab_size}


MODELS = {
    "3m": Model("qwen2", 2_048, 256, 512, 4, 4, 2),
    "135m": Model("llama", 49_152, 576, 1_536, 30, 9, 3),  # SmolLM2-135M's shape
}


@dataclass(frozen=True)
class Variant:
    """One kind of step, which learns from all its responses in one update."""

    algorithm: str
    """`grpo` or `ppo`; PPO has a critic, and a KL to a reference in its reward."""
    num_prompts: int
    group_size: int
    has_reference: bool = False
    model: str = "3m"
    in_bfloat16: bool = False
    """Only products: weights and moments are float32."""

    @property
    def completions(self) -> int:
        """Responses of a step."""
        return self.num_prompts * self.group_size


VARIANTS = {
    "grpo": Variant("grpo", 8, 8),
    "grpo_ref": Variant("grpo", 8, 8, has_reference=True),
    "ppo_8x8": Variant("ppo", 8, 8, has_reference=True),
    "ppo_64x1": Variant("ppo", 64, 1, has_reference=True),
    "grpo_135m": Variant("grpo", 4, 8, model="135m"),
    "grpo_135m_bf16": Variant("grpo", 4, 8, model="135m", in_bfloat16=True),
}


def prompts(variant: Variant) -> list[list[int]]:
    """Returns the token ids of the prompts, the same ones at every step."""
    rng, vocab_size = random.Random(0), MODELS[variant.model].vocab_size - 1
    return [
        [rng.randrange(1, vocab_size) for _ in range(rng.randint(*PROMPT_TOKENS))]
        for _ in range(variant.num_prompts)
    ]


def text(token_ids: Sequence[int]) -> str:
    """Returns what the benchmark's tokenizer splits into `token_ids`: a letter for each."""
    return "".join(chr(token_id + 1) for token_id in token_ids)


def ids_of(letters: str) -> list[int]:
    """Returns the token ids of a text."""
    return [ord(letter) - 1 for letter in letters]


def reward(response_ids: Sequence[int]) -> float:
    """Returns how many of the most tokens of a response are there and even, as a share."""
    return sum(token_id % 2 == 0 for token_id in response_ids) / RESPONSE_TOKENS


class Gate:
    """One step per line of standard input, and one line of JSON after it.

    While it waits the process sleeps, so that contestants can take turns. Other output goes to
    standard error. The process ends when standard input does.
    """

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(1), "w", encoding="ascii")
        os.dup2(2, 1)
        print("{}", file=self._reports, flush=True)  # ready
        self._wait()

    def step_done(self) -> None:
        """Reports what has passed since the last start signal and waits for the next."""
        report = {
            "cpu_s": time.process_time() - self._cpu,
            "wall_s": time.perf_counter() - self._wall,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "phases": self._phases,
        }
        print(json.dumps(report), file=self._reports, flush=True)
        self._wait()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the CPU seconds of the block to phase `name` of this step."""
        start = time.process_time()
        yield
        self.add(name, time.process_time() - start)

    def add(self, name: str, seconds: float) -> None:
        """Adds to a phase of this step."""
        self._phases[name] = self._phases.get(name, 0.0) + seconds

    def _wait(self) -> None:
        if not sys.stdin.readline():
            self._reports.flush()
            os._exit(0)
        self._phases = {}
        self._cpu, self._wall = time.process_time(), time.perf_counter()
