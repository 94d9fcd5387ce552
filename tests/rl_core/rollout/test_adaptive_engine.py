"""Engines that run out of memory, for real or in the middle of a chosen forward pass."""

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from rl_core.errors import OutOfMemory
from rl_core.resources.token_budgets import log_out_of_memory
from rl_core.rollout.adaptive_engine import AdaptiveEngine
from rl_core.rollout.model_files import read_weights
from rl_core.rollout.protocol import in_order
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from tests.support.memory_faults import SAID, engine_out_of_memory
from tests.support.runs import run_config

SAMPLED, GREEDY = (SamplingSettings(24, temperature) for temperature in (1.0, 0.0))
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 2 * i)), seed=i) for i in range(20)]
"""Of the tiny model: so many MLPs are computed in a pass."""


def make(engine: str, model: Path) -> AdaptiveEngine:
    config = run_config(
        data={"train_batch_size": 8, "max_prompt_length": 96, "max_response_length": 32},
        actor={"mini_batch_size": 8},
        rollout={"engine": engine, "kv_cache_mib": 16, "max_num_seqs": 8},
    )
    return AdaptiveEngine(config, model)


def other_weights(model: Path) -> dict[str, torch.Tensor]:
    """A learner's: an engine that is built again must not fall back to those of the folder."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in read_weights(model).items()
    }


def assert_same(actual: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        assert one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def test_an_engine_that_runs_out_of_memory_answers_as_if_it_had_not(
    name, tiny_model_path, survived
):
    """In a pass over the first prompts, in mid-response, and when many have been handed over."""
    engine = make(name, tiny_model_path)
    engine.engine.update_weights(other_weights(tiny_model_path))
    expected = {
        mode: in_order(engine.generate(REQUESTS, mode, "gen")) for mode in (SAMPLED, GREEDY)
    }
    assert engine.end_step() == {"memory/budget_seqs/gen": 8, "memory/oom/gen": 0}

    late = 24 + 10  # the second batch's tenth pass
    for mode, phase, call in ((SAMPLED, "gen", late), (GREEDY, "evaluate", 1)):
        with engine_out_of_memory({call}) as failed:
            finished = list(engine.generate(REQUESTS, mode, phase))
        assert failed == [call]
        assert sorted(position for position, _ in finished) == list(range(len(REQUESTS)))
        assert_same(in_order(finished), expected[mode])
        survived("OOM", phase)
    assert engine.end_step() == {
        "memory/budget_seqs/gen": 2,
        "memory/oom/gen": 1,
        "memory/oom_seqs/gen": 8,
        "memory/oom/evaluate": 1,
        "memory/oom_seqs/evaluate": 4,
    }
    engine.engine.close()


@pytest.mark.slow
def test_a_vllm_engine_built_again_where_memory_is_short_has_a_smaller_cache(
    tiny_model_path, monkeypatch
):
    from rl_core.rollout import vllm_engine

    engine = make("vllm", tiny_model_path)
    inner = engine.engine
    assert isinstance(inner, vllm_engine.VllmEngine)
    inner.update_weights(other_weights(tiny_model_path))
    expected = in_order(engine.generate(REQUESTS, SAMPLED, "gen"))
    # More than there is; of it vLLM refuses all, and takes a thousandth.
    inner._options["kv_cache_memory_bytes"] = wanted = 2 * psutil.virtual_memory().total
    monkeypatch.setattr(vllm_engine, "_MEMORY_SHARES", (1.0, 16 * 2**20 / wanted))
    with engine_out_of_memory({5}):
        assert_same(in_order(engine.generate(REQUESTS, SAMPLED, "gen")), expected)
    monkeypatch.setattr(vllm_engine, "_MEMORY_SHARES", (1.0, 1e-9))  # no place for one response
    with (
        engine_out_of_memory({5}),
        pytest.raises(OutOfMemory, match="less than requested memory for kv") as caught,
    ):
        list(engine.generate(REQUESTS, SAMPLED, "evaluate"))
    assert caught.value.phase == "evaluate"


@pytest.mark.chaos
def test_below_a_single_response_the_phase_and_what_was_asked_for_are_named(
    tiny_model_path, survived
):
    engine = make("hf", tiny_model_path)
    with (
        engine_out_of_memory(range(1_000)) as failed,
        pytest.raises(OutOfMemory, match=r"4\.64 GiB.*A single response was under way") as caught,
    ):
        list(engine.generate(REQUESTS, GREEDY, "evaluate"))
    assert (caught.value.phase, len(failed)) == ("evaluate", 4)  # 8, 4, 2, 1
    assert SAID in caught.value.detail
    survived("OOM", "a single response")


def test_another_error_is_nobodys_memory(tiny_model_path):
    engine = make("hf", tiny_model_path)
    with pytest.raises(RuntimeError, match="negative dimension"):
        list(engine.generate(REQUESTS, SamplingSettings(-1), "gen"))


@pytest.mark.slow
def test_what_fits_grows_back(tiny_model_path, caplog):
    engine = make("hf", tiny_model_path)
    expected = in_order(engine.generate(REQUESTS, SAMPLED, "gen"))
    with engine_out_of_memory({7}):
        list(engine.generate(REQUESTS, SAMPLED, "gen"))
    # At once, with what was asked for; and at the step's end.
    assert caplog.messages == [f"out of memory in gen: 8 -> 4 responses at a time: {SAID}"]
    caplog.clear()
    log_out_of_memory(3, engine.end_step())
    assert caplog.messages == [
        "step 3: out of memory in gen: 8 -> 4 responses at a time, nothing was lost"
    ]
    sizes = []
    for _ in range(21):
        assert_same(in_order(engine.generate(REQUESTS[:1], SAMPLED, "gen")), expected[:1])
        sizes.append(engine.end_step()["memory/budget_seqs/gen"])
    assert sizes == [4] * 20 + [5]
    with engine_out_of_memory({7}) as failed:  # five at a time are really five
        list(engine.generate(REQUESTS, SAMPLED, "gen"))
    assert failed == [7]
    assert engine.end_step()["memory/oom_seqs/gen"] == 5
