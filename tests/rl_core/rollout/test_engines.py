"""Both engines against transformers: its generate and full forward passes, on real weights."""

import random
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from rl_core.data.prompts import load_tokenizer
from rl_core.models.shared_prefix import can_share_prompts
from rl_core.rollout.hf_engine import HfEngine, likeliest_only
from rl_core.rollout.protocol import in_order
from rl_core.types import GenerationRequest, SamplingSettings
from tests.support.engines import (
    GREEDY,
    ask,
    assert_greedy_as,
    logprobs_of,
    make_vllm,
    perturb,
    prompts,
)
from tests.support.programs import command_lines

EOS = 1


@pytest.mark.parametrize("any_engine", ["vllm"], indirect=True)
def test_an_engine_that_sleeps_is_asleep_as_soon_as_its_last_answer_is_out(
    engine, reference, monkeypatch
):
    # A CPU's engine cannot sleep, so what it is told is written down.
    told: list[str] = []
    monkeypatch.setattr(engine, "sleeps", True)
    monkeypatch.setattr(engine.llm, "sleep", lambda level: told.append(f"sleep {level}"))
    monkeypatch.setattr(engine.llm, "wake_up", lambda: told.append("wake up"))
    requests = [GenerationRequest(prompt, seed=0) for prompt in prompts()]
    # As workers ask: for as many as there are, and not whether there are more.
    answers = engine.generate(requests, GREEDY)
    assert len(list(islice(answers, len(requests)))) == len(requests)
    assert told == ["sleep 1"]
    answers = engine.generate(10 * requests, GREEDY)  # more than 64 at a time: in two rounds
    next(answers)
    assert told == ["sleep 1", "wake up"]
    answers.close()
    assert told == ["sleep 1", "wake up", "sleep 1"]
    engine.update_weights(reference.state_dict())
    assert told[3:] == ["wake up"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_split_over_two_processes_is_the_same_model(tiny_model_path, reference):
    engine = make_vllm(tiny_model_path, num_parts=2)
    names = command_lines(psutil.Process().children(recursive=True)).values()
    assert sum("Worker_TP" in name for name in names) == 2
    assert_greedy_as(reference, engine)
    perturb(reference, 1)  # the tied embeddings too
    engine.update_weights(reference.state_dict())
    assert_greedy_as(reference, engine)
    engine.close()
    names = command_lines(psutil.Process().children(recursive=True)).values()
    assert not any("Worker_TP" in name for name in names)


def test_a_model_that_sees_a_window_of_its_prompt_is_generated_from_too(reference, tmp_path):
    config = MistralConfig.from_dict(
        reference.config.to_dict()
        | {"model_type": "mistral", "sliding_window": 24, "layer_types": None}
    )
    torch.manual_seed(0)
    windowed = MistralForCausalLM(config).eval()
    perturb(windowed, 0)
    windowed.generation_config.eos_token_id = EOS
    windowed.save_pretrained(tmp_path)
    engine = HfEngine(tmp_path, dtype="float32", max_num_seqs=16, on_gpu=False)
    assert not can_share_prompts(windowed.get_decoder())
    assert_greedy_as(windowed, engine)


def test_a_seed_gives_the_same_sample_alone_and_in_a_batch(engine):
    sampling = SamplingSettings(max_tokens=16, temperature=1.0)
    # More requests than max_num_seqs: some wait, others share their batch with finished ones.
    requests = [GenerationRequest(p, 100 + i) for i, p in enumerate(prompts() * 6)]
    batch = in_order(engine.generate(requests, sampling))
    again = in_order(engine.generate(requests[::-1], sampling))[::-1]
    for i, request in enumerate(requests):
        assert batch[i].response_ids.tolist() == again[i].response_ids.tolist()
        if i % 5 == 0:
            ((_, alone),) = engine.generate([request], sampling)
            assert batch[i].response_ids.tolist() == alone.response_ids.tolist()
            np.testing.assert_allclose(batch[i].logprobs, alone.logprobs, atol=1e-4)
    same_prompt = [tuple(c.response_ids) for r, c in zip(requests, batch, strict=True)]
    assert len(set(same_prompt)) > len(requests) * 0.9, "other seeds must give other samples"


@pytest.mark.parametrize(
    ("probabilities", "top_p", "top_k", "kept"),
    [
        ([0.5, 0.25, 0.15, 0.1], 1.0, -1, [0.5, 0.25, 0.15, 0.1]),
        ([0.5, 0.25, 0.15, 0.1], 1.0, 0, [0.5, 0.25, 0.15, 0.1]),
        ([0.1, 0.5, 0.15, 0.25], 0.6, -1, [0, 2 / 3, 0, 1 / 3]),
        ([0.5, 0.25, 0.15, 0.1], 0.8, -1, [5 / 9, 5 / 18, 1 / 6, 0]),
        # Of three they have 5/9, 5/18 and 1/6: the first two add up to 0.83.
        ([0.5, 0.25, 0.15, 0.1], 0.8, 3, [2 / 3, 1 / 3, 0, 0]),
        ([0.5, 0.25, 0.15, 0.1], 1.0, 3, [5 / 9, 5 / 18, 1 / 6, 0]),
        ([0.5, 0.25, 0.15, 0.1], 1e-6, 9, [1, 0, 0, 0]),
        ([0.4, 0.3, 0.3], 1.0, 2, [0.4, 0.3, 0.3]),  # as likely as the last one
    ],
)
def test_the_likeliest_tokens_by_hand(probabilities, top_p, top_k, kept):
    logits = torch.tensor([probabilities, probabilities[::-1]]).log()
    left = likeliest_only(logits, top_p=top_p, top_k=top_k).softmax(dim=-1)
    torch.testing.assert_close(left, torch.tensor([kept, kept[::-1]], dtype=torch.float32))


def test_samples_are_of_the_likeliest_tokens_with_their_log_probs(engine, reference):
    sampling = SamplingSettings(max_tokens=12, temperature=1.5, top_p=0.9, top_k=3)
    asked, places = prompts() * 3, []
    for prompt, completion in zip(asked, ask(engine, asked, sampling), strict=True):
        ids = torch.tensor([[*prompt, *completion.response_ids.tolist()]])
        with torch.no_grad():
            logits = reference(input_ids=ids).logits[0, len(prompt) - 1 : -1] / 1.5
        chances = likeliest_only(logits, top_p=0.9, top_k=3).log_softmax(dim=-1)
        sampled = chances.gather(1, torch.tensor(completion.response_ids)[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, sampled, atol=1e-4)
        ranks = logits.argsort(dim=-1, descending=True)
        places += (ranks == torch.tensor(completion.response_ids)[:, None]).nonzero()[:, 1].tolist()
    assert set(places) == {0, 1, 2}


def test_prompts_above_the_budget_of_one_pass_and_a_full_cache_change_no_sample(engine):
    # 60 x 380 tokens are more than vLLM reads in a pass; and as each response crosses into
    # another block (at 384), the KV cache of 128 blocks is full: some are thrown out, begun anew.
    sampling = SamplingSettings(max_tokens=40, temperature=1.0)
    rng = random.Random(3)
    requests = [
        GenerationRequest(tuple(rng.randrange(2, 258) for _ in range(380)), seed)
        for seed in range(60)
    ]
    batch = in_order(engine.generate(requests, sampling))
    for i in range(0, len(requests), 10):
        ((_, alone),) = engine.generate(requests[i : i + 1], sampling)
        assert batch[i].response_ids.tolist() == alone.response_ids.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_the_tempered_distribution(engine, reference, temperature):
    sampled = ask(engine, prompts(), SamplingSettings(max_tokens=12, temperature=temperature))
    for prompt, completion in zip(prompts(), sampled, strict=True):
        expected = logprobs_of(reference, prompt, completion.response_ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


def test_samples_follow_the_models_distribution(engine, reference):
    prompt, draws, temperature = prompts()[1], 3_000, 0.6
    sampling = SamplingSettings(max_tokens=1, temperature=temperature)
    requests = [GenerationRequest(prompt, seed) for seed in range(draws)]
    tokens = [int(c.response_ids[0]) for _, c in engine.generate(requests, sampling)]
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([prompt])).logits[0, -1] / temperature
    probs = logits.softmax(-1).double().numpy()
    counts = np.bincount(tokens, minlength=len(probs))
    common = probs * draws >= 5
    statistic = (((counts - probs * draws) ** 2) / (probs * draws))[common].sum()
    degrees = int(common.sum()) - 1
    assert degrees > 20
    assert abs(statistic - degrees) < 4 * np.sqrt(2 * degrees)


def test_a_response_ends_with_the_models_eos_or_at_the_limit(engine):
    limit = 150
    completions = ask(engine, [prompts()[1]] * 24, SamplingSettings(limit, temperature=1.0))
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        ids = completion.response_ids.tolist()
        assert len(ids) == len(completion.logprobs)
        if completion.finish_reason == "stop":
            assert ids.index(EOS) == len(ids) - 1
        else:
            assert EOS not in ids
            assert len(ids) == limit


def test_completions_arrive_when_they_end_and_the_rest_can_be_dropped(engine, reference):
    sampling = SamplingSettings(max_tokens=150, temperature=1.0)
    requests = [GenerationRequest(prompts()[1], seed) for seed in range(16)]
    whole = in_order(engine.generate(requests, sampling))
    stream = engine.generate(requests, sampling)
    position, first = next(stream)
    assert first.response_ids.tolist() == whole[position].response_ids.tolist()
    assert len(first.response_ids) < max(len(c.response_ids) for c in whole)
    stream.close()  # what is left must neither hold the weights back nor come with what follows
    engine.update_weights(reference.state_dict())
    again = in_order(engine.generate(requests, sampling))
    assert [c.response_ids.tolist() for c in again] == [c.response_ids.tolist() for c in whole]
    assert list(engine.generate([], sampling)) == []


@pytest.mark.slow
def test_building_a_vllm_engine_leaves_random_state_and_threads_alone(tiny_model_path):
    torch.manual_seed(7)
    np.random.seed(7)  # the global state is what is tested
    random.seed(7)
    expected = (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random())
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    engine = make_vllm(tiny_model_path)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()) == expected
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    engine.close()


def test_a_response_ends_after_a_text_and_goes_on_from_there(engine, tiny_model_path):
    """Greedily, so that continuing must give what would have been said without a stop."""
    tokenizer = load_tokenizer(str(tiny_model_path))
    uncut = ask(engine, prompts())
    stops = []
    for completion in uncut:  # two characters, which are two tokens
        words = [tokenizer.decode([i]) for i in completion.response_ids.tolist()]
        pairs = [a + b for a, b in pairwise(words)]
        stops += [pair for pair in pairs if len(pair) == 2 and pair.isascii()][:1]
    assert len(stops) > 2
    cut = ask(engine, prompts(), replace(GREEDY, stop=tuple(stops)))
    lengths = [len(completion.response_ids) for completion in cut]
    for whole, part, length in zip(uncut, cut, lengths, strict=True):
        assert part.response_ids.tolist() == whole.response_ids[:length].tolist()
        np.testing.assert_allclose(part.logprobs, whole.logprobs[:length], atol=1e-4)
        text = tokenizer.decode(part.response_ids.tolist())
        is_cut = text.endswith(tuple(stops))
        assert is_cut or length == len(whole.response_ids)
        assert not any(stop in text[:-1] for stop in stops)
        assert part.finish_reason == ("stop" if is_cut else whole.finish_reason)
    assert sum(length < GREEDY.max_tokens for length in lengths) > 2
    left = [
        GenerationRequest((*prompt, *part.response_ids.tolist()), 0, max_tokens=24 - length)
        for prompt, part, length in zip(prompts(), cut, lengths, strict=True)
        if length < GREEDY.max_tokens
    ]
    rests = in_order(engine.generate(left, GREEDY))
    expected = [c for c, n in zip(uncut, lengths, strict=True) if n < GREEDY.max_tokens]
    for whole, request, rest in zip(expected, left, rests, strict=True):
        assert request.max_tokens is not None
        np.testing.assert_array_equal(whole.response_ids[-request.max_tokens :], rest.response_ids)
        assert rest.finish_reason == whole.finish_reason


@pytest.mark.parametrize("any_engine", ["vllm"], indirect=True)
def test_a_further_turn_is_read_from_the_prefix_cache(engine, reference, monkeypatch):
    """All whole blocks of what was said, the response's own too; none once weights are new."""
    cached, step = list[int](), engine.llm.llm_engine.step

    def watched() -> list[Any]:
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    monkeypatch.setattr(engine.llm.llm_engine, "step", watched)
    prompt = prompts()[4]  # 128 tokens: four blocks
    (first,) = ask(engine, [prompt], replace(GREEDY, max_tokens=70))
    said = (*prompt, *first.response_ids.tolist(), 7, 8, 9)
    ask(engine, [said])
    num_known = len(prompt) + len(first.response_ids) - 1  # the last was sampled, and never read
    assert cached == [0, num_known // 32 * 32]
    engine.update_weights(reference.state_dict())
    ask(engine, [said])
    assert cached[2:] == [0]


def test_each_request_has_its_own_limit(engine):
    sampling = SamplingSettings(max_tokens=12, temperature=1.0)
    limits = [1, 5, None, 12, 3]
    requests = [
        GenerationRequest(prompts()[1], seed, max_tokens=limit) for seed, limit in enumerate(limits)
    ]
    plain = [replace(request, max_tokens=None) for request in requests]
    unlimited = in_order(engine.generate(plain, sampling))
    limited = in_order(engine.generate(requests, sampling))
    for limit, whole, part in zip(limits, unlimited, limited, strict=True):
        expected = whole.response_ids[:limit].tolist()
        assert part.response_ids.tolist() == expected
        is_cut = limit is not None and len(whole.response_ids) > limit
        assert part.finish_reason == ("length" if is_cut else whole.finish_reason)
