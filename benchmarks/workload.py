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

VOCAB_SIZE = 2_048
EOS_ID, PAD_ID = VOCAB_SIZE, VOCAB_SIZE + 1
"""Known to the tokenizer, without a row in the embedding: no model can sample them."""
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""A Qwen2 of 2.9M parameters."""
COMPLETIONS = 64
"""Per step, and in its one update."""
PROMPT_TOKENS = (95, 105)
RESPONSE_TOKENS = 64
LEARNING_RATE = 1e-6
GRPO_KL_COEF, PPO_KL_COEF = 0.04, 0.05


@dataclass(frozen=True)
class Variant:
    """One kind of step."""

    algorithm: str
    """`grpo` or `ppo`; PPO has a critic, and a KL to a reference in its reward."""
    num_prompts: int
    has_reference: bool

    @property
    def group_size(self) -> int:
        """Completions per prompt."""
        return COMPLETIONS // self.num_prompts


VARIANTS = {
    "grpo": Variant("grpo", num_prompts=8, has_reference=False),
    "grpo_ref": Variant("grpo", num_prompts=8, has_reference=True),
    "ppo_8x8": Variant("ppo", num_prompts=8, has_reference=True),
    "ppo_64x1": Variant("ppo", num_prompts=64, has_reference=True),
}


def prompts(num_prompts: int) -> list[list[int]]:
    """Returns the token ids of the prompts, the same ones at every step."""
    rng = random.Random(0)
    return [
        [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(*PROMPT_TOKENS))]
        for _ in range(num_prompts)
    ]


def text(token_ids: Sequence[int]) -> str:
    """Returns what the benchmark's tokenizer splits into `token_ids`."""
    return " ".join(f"w{token_id}" for token_id in token_ids)


def reward(response_ids: Sequence[int]) -> float:
    """Returns the share of even tokens."""
    return sum(token_id % 2 == 0 for token_id in response_ids) / len(response_ids)


class Gate:
    """One step per line of standard input, and one line of JSON after it.

    While it waits the process sleeps, so that contestants can take turns. Whatever else is printed
    goes to standard error. The process ends where standard input does.
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
