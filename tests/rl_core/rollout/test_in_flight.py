import copy
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from rl_core.data.prompts import load_tokenizer, text_codec
from rl_core.envs.countdown import CountdownConfig
from rl_core.envs.text_env import EnvTurn
from rl_core.rollout.protocol import RolloutEngine, in_order
from rl_core.rollout.turns import TurnTaking
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings
from tests.support.engines import (
    assert_greedy_as,
    logprobs_of,
    make_hf,
    make_vllm,
    perturb,
    prompts,
)


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
    engine, reference
):
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


def test_requests_that_wait_begin_under_the_weights_that_are_there_by_then(engine, reference):
    requests = [GenerationRequest(prompts()[1], seed) for seed in range(100)]  # above both limits
    engine.policy_version = 7
    finished = []
    for ended in engine.generate_by_token(requests, SamplingSettings(max_tokens=8)):
        finished += ended
        engine.policy_version = 8
    starts = {c.policy_starts for _, c in finished}
    assert starts <= {((0, 7), (1, 8)), ((0, 7),), ((0, 8),)}
    assert ((0, 8),) in starts


def test_turns_go_on_across_an_update_and_those_after_it_read_all_by_the_new_weights(
    engine, reference, tiny_model_path, monkeypatch
):
    def reply(env: CountdownConfig, response: str, truth: dict[str, Any]) -> EnvTurn:
        return EnvTurn("<7>")

    monkeypatch.setattr(CountdownConfig, "stop", tuple(string.ascii_letters))
    monkeypatch.setattr(CountdownConfig, "reply", reply)
    old, rounds = copy.deepcopy(reference), 0

    def stream(
        requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> Iterator[tuple[int, Completion]]:
        nonlocal rounds
        rounds += 1
        for tokens, ended in enumerate(engine.generate_by_token(requests, sampling), start=1):
            yield from ended
            if (rounds, tokens) == (1, 3):
                perturb(reference, 3)
                engine.update_weights(reference.state_dict())
                engine.policy_version = 8

    decode, encode = text_codec(load_tokenizer(str(tiny_model_path)))
    taking = TurnTaking(CountdownConfig(max_turns=3), decode, encode)
    requests = [GenerationRequest(prompt, seed) for prompt in prompts() for seed in (0, 1)]
    problems = [Problem(i, "countdown", (), {}, 1) for i in range(len(requests))]
    engine.policy_version = 7
    ended = taking.play(stream, requests, SamplingSettings(40, temperature=1.0), problems)
    changed = answered = 0
    for request, completion in zip(requests, in_order(list(ended)), strict=True):
        response = completion.response_ids.tolist()
        first = completion.turns[0].num_tokens if completion.turns else len(response)
        num_old = min(first, 3)
        expected = logprobs_across_an_update(
            old, reference, request.prompt_ids, response[:first], num_old
        )
        if completion.turns:  # the env's words are no policy's
            later = logprobs_of(reference, request.prompt_ids, completion.response_ids)
            expected += np.where(completion.sampled, later, 0.0)[first:].tolist()
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)
        own = completion.num_sampled
        runs = [(7, num_old), (8, own - num_old)]
        assert completion.policy_runs == [run for run in runs if run[1]]
        changed, answered = changed + (first > 3), answered + bool(completion.turns)
    assert min(changed, answered) > 2, "a test in which nobody was answered proves nothing"
