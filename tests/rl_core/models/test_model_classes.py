"""What transformers computes with a class, we do: a handful here, all in docs/models.md."""

import pytest

from rl_core.models.folder_check import check_model_folder, refuse_for_vllm
from tests.support import model_classes, small_models

FAMILIES = (
    *("llama", "qwen2", "qwen3", "gemma3_text", "phi3", "olmo2", "smollm3", "mixtral"),
    "gemma2",  # soft caps of scores and logits, which SDPA and the plain product leave out
    "cohere",  # scales its logits
    "lfm2",  # short convolutions, which left padding must not enter
    "biogpt",  # dropout in the layers themselves, a tied head of another name
    "diffllama",  # attends by itself: no shared prompt, no packed row
)
SLOW = ("adapters", "4 bits", "resume")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    size = small_models.write_small_model(request.param, folder / "base").num_parameters()
    assert 2e6 < size < 9e6
    check_model_folder(folder / "base")
    return folder


@pytest.mark.parametrize("what", ["plan", "learner", "hf"])
def test_a_small_model_is_planned_learned_and_generated_from_as_by_transformers(folder, what):
    model_classes.CHECKS[what](folder)


@pytest.mark.slow
@pytest.mark.parametrize("what", SLOW)
def test_a_small_model_is_saved_as_it_was_learned(folder, what):
    model_classes.CHECKS[what](folder)


def test_the_page_has_one_row_for_each_class_that_transformers_has():
    rows = model_classes.rows_of_page()
    assert rows.keys() == small_models.KINDS.keys()
    assert model_classes.page(rows) == model_classes.PAGE.read_text()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("inkling_text", "logits_mup_width_multiplier=24.0: its logits are transformed"),
        ("llama4_text", "no trunk with a plain output embedding"),
        ("gpt_oss", "'gpt_oss' has attention of its own"),
        ("phi", "PhiForCausalLM is no trunk with a plain output embedding"),
        ("blenderbot", "no decoder-only causal LM"),
        ("minimax", "carries a state from token to token"),
    ],
)
def test_what_computes_something_else_is_refused_before_it_is_loaded(tmp_path, kind, why):
    small_models.write_small_model(kind, tmp_path)
    with pytest.raises(ValueError, match=why):
        check_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("mixtral", "mixture of experts"),  # right as loaded, wrong after an update to the same
        ("granitemoe", "mixture of experts"),  # weights: by 6 nats
        ("gemma3", "'gemma3' reads pictures, too"),
        ("doge", "'doge' otherwise than transformers"),
        ("falcon", "ffn_hidden_size=512, and vLLM takes 4 times hidden_size"),
        ("qwen2", None),
    ],
)
def test_what_vllm_gets_wrong_is_refused_for_it(tmp_path, monkeypatch, kind, why):
    monkeypatch.setitem(small_models.OTHERS, "falcon", {"ffn_hidden_size": 512})
    small_models.write_small_model(kind, tmp_path)
    if why is None:
        refuse_for_vllm(tmp_path)
    else:
        with pytest.raises(ValueError, match=rf"{why}.*: set rollout\.engine=hf"):
            refuse_for_vllm(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "cohere2",  # whose window is a token shorter than vLLM reads it
        "falcon",  # whose projections are one matrix, shared by all heads
        "gpt_bigcode",  # one head of keys for all, which its config.json does not count
    ],
)
def test_vllm_computes_and_updates_a_class_as_transformers_does(tmp_path, kind):
    small_models.write_small_model(kind, tmp_path / "base")
    model_classes.CHECKS["vllm"](tmp_path)
