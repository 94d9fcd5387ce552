"""New weights between two tokens of a response, in both engines."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from rl_core.rollout.protocol import RolloutEngine, in_order
from rl_core.types import GenerationRequest, SamplingSettings
from tests.support.engines import assert_greedy_as, make_hf, make_vllm, perturb, prompts


@pytest.fixture(scope="module", params=["vllm", "hf"])
def any_engine(request: pytest.FixtureRequest, tiny_model_path: Path) -> Iterator[RolloutEngine]:
    is_vllm = request.param == "vllm"
    engine = make_vllm(tiny_model_path, in_flight=True) if is_vllm else make_hf(tiny_model_path)
    yield engine
    engine.close()


@torch.no_grad()
def logprobs_across_an_update(
    old: Any, new: Any, prompt: Sequence[int], response: list[int], num_old: int
) -> list[float]:
    """The log-probs of a response whose first tokens are the old model's, one after the other.

    Its keys and values stay, and the new model goes on from them.
    """
    logprobs: list[float] = []
    read, cache = list(prompt), DynamicCache()
    for i, token in enumerate(response):
        model = old if i < num_old else new
        logits = model(input_ids=torch.tensor([read]), past_key_values=cache).logits[0, -1]
        logprobs.append(float(logits.log_softmax(-1)[token]))
        read = [token]
    return logprobs


def test_responses_under_way_go_on_under_new_weights_and_say_which_tokens_are_whose(
    engine: RolloutEngine, reference: Any
) -> None:
    old = copy.deepcopy(reference)
    sampling = SamplingSettings(max_tokens=20, temperature=1.0)
    requests = [GenerationRequest(prompt, seed) for seed, prompt in enumerate(prompts())]
    engine.policy_version = 7
    calm = in_order(engine.generate(requests, sampling))
    assert {c.policy_starts for c in calm} == {((0, 7),)}
    finished = []
    for tokens, ended in enumerate(engine.generate_by_token(requests, sampling), start=1):
        finished += ended
        if tokens == 6:
            perturb(reference, 3)
            engine.update_weights(reference.state_dict())
            engine.policy_version = 8
    for request, before, completion in zip(requests, calm, in_order(finished), strict=True):
        response = completion.response_ids.tolist()
        assert completion.policy_starts == (((0, 7), (6, 8)) if len(response) > 6 else ((0, 7),))
        assert response[:6] == before.response_ids.tolist()[:6]
        expected = logprobs_across_an_update(old, reference, request.prompt_ids, response, 6)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)
    assert any(len(c.policy_starts) > 1 for _, c in finished)
    assert_greedy_as(reference, engine)  # what begins now remembers nothing of the old ones


def test_requests_that_wait_begin_under_the_weights_that_are_there_by_then(
    engine: RolloutEngine, reference: Any
) -> None:
    requests = [GenerationRequest(prompts()[1], seed) for seed in range(100)]  # above both limits
    engine.policy_version = 7
    finished = []
    for ended in engine.generate_by_token(requests, SamplingSettings(max_tokens=8)):
        finished += ended
        engine.policy_version = 8
    starts = {c.policy_starts for _, c in finished}
    assert starts <= {((0, 7), (1, 8)), ((0, 7),), ((0, 8),)}
    assert ((0, 8),) in starts
