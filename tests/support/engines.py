"""Engines of both kinds on real weights, and what transformers says of the same weights."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_core.config.run import RunConfig
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import RolloutEngine, in_order
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from tests.support.solving import let_countdown_answer

GREEDY = SamplingSettings(max_tokens=24, temperature=0.0)
PROMPT_LENGTHS = (1, 7, 32, 33, 128, 129, 300)
"""Around and above vLLM's blocks of 32 tokens: a stale prefix cache shows in no shorter prompt."""


def make_vllm(path: Path, num_parts: int = 1) -> RolloutEngine:
    from rl_core.rollout.vllm_engine import VllmEngine

    sections = {
        "data": {"max_prompt_length": 384, "max_response_length": 128},
        "env": {"name": "countdown", "max_turns": 2},
        "rollout": {"kv_cache_mib": 64, "tensor_parallel_size": num_parts},
    }
    with pytest.MonkeyPatch.context() as patch:
        let_countdown_answer(patch)
        config = RunConfig.model_validate(sections)
    return VllmEngine(config, path, max_num_seqs=64)


def make_hf(path: Path) -> RolloutEngine:
    return HfEngine(path, dtype="float32", max_num_seqs=16, on_gpu=False)


ENGINES: dict[str, Callable[[Path], RolloutEngine]] = {"vllm": make_vllm, "hf": make_hf}


def prompts(seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2, 258) for _ in range(length)) for length in PROMPT_LENGTHS]


def ask(
    engine: RolloutEngine, asked: Sequence[Sequence[int]], sampling: SamplingSettings = GREEDY
) -> list[Completion]:
    requests = [GenerationRequest(tuple(p), seed) for seed, p in enumerate(asked)]
    return in_order(engine.generate(requests, sampling))


def perturb(model: Any, seed: int, only: str = "") -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


@torch.no_grad()
def logprobs_of(
    model: Any, prompt: Sequence[int], response: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """The response's log-probs from one forward pass over all of it, without any cache."""
    ids = torch.tensor([[*prompt, *response.tolist()]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


def assert_greedy_as(model: Any, engine: RolloutEngine) -> None:
    for prompt, completion in zip(prompts(), ask(engine, prompts()), strict=True):
        generated = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=GREEDY.max_tokens,
        )[0, len(prompt) :]
        assert completion.response_ids.tolist() == generated.tolist()
        assert completion.logprobs.dtype == np.float32
        np.testing.assert_allclose(
            completion.logprobs, logprobs_of(model, prompt, completion.response_ids), atol=1e-3
        )
