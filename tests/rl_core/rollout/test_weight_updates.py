import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core.rollout.hf_engine import HfEngine
from tests.support.engines import ENGINES, ask, assert_greedy_as, make_vllm, perturb, prompts


def test_greedy_tokens_are_those_of_transformers_after_each_weight_update(engine, reference):
    assert_greedy_as(reference, engine)
    seen = {tuple(c.response_ids) for c in ask(engine, prompts())}
    for update in range(4):
        perturb(reference, update)
        if update % 2:
            engine.release_weights()
        engine.update_weights(reference.state_dict())
        assert_greedy_as(reference, engine)
        new = {tuple(c.response_ids) for c in ask(engine, prompts())}
        assert not new & seen, "an update that changes no response would prove nothing"
        seen |= new


def test_an_update_of_the_tied_embeddings_reaches_the_output_layer(engine, reference):
    before = [tuple(c.response_ids) for c in ask(engine, prompts())]
    perturb(reference, 5, only="embed_tokens")
    weights = {n: t for n, t in reference.state_dict().items() if n != "lm_head.weight"}
    engine.update_weights(weights)
    assert_greedy_as(reference, engine)
    assert before != [tuple(c.response_ids) for c in ask(engine, prompts())]


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_untied_output_layer_is_updated_too(name, reference, tmp_path):
    reference.config.tie_word_embeddings = False
    reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.detach().clone())
    reference.save_pretrained(tmp_path)
    untied = AutoModelForCausalLM.from_pretrained(tmp_path)
    engine = ENGINES[name](tmp_path)
    perturb(untied, 6, only="lm_head")
    assert not torch.equal(untied.lm_head.weight, untied.model.embed_tokens.weight)
    engine.update_weights(untied.state_dict())
    assert_greedy_as(untied, engine)
    engine.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: w.pop("model.layers.0.self_attn.q_proj.weight"), "1 of 26 .*missing.*q_proj"),
        (lambda w: w.update({"model.extra": torch.zeros(1)}), "unknown: model.extra"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"\(3,\) instead of \(64,\)"),
    ],
)
def test_a_partial_or_foreign_update_is_refused_and_changes_nothing(
    engine, reference, damage, message
):
    weights = {
        n: torch.zeros_like(t) for n, t in reference.state_dict().items() if n != "lm_head.weight"
    }
    damage(weights)
    with pytest.raises(ValueError, match=message):
        engine.update_weights(weights)
    assert_greedy_as(reference, engine)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_released_weights_are_in_no_memory_and_nothing_is_generated_from_them(
    dtype, tiny_model_path, reference
):
    engine = HfEngine(tiny_model_path, dtype=dtype, max_num_seqs=16, on_gpu=False)
    for _ in range(2):  # those of the folder, then those of an update
        engine.release_weights()
        assert {x.untyped_storage().nbytes() for x in engine._model.parameters()} == {0}
        with pytest.raises(RuntimeError, match="weights were released"):
            ask(engine, prompts())
        engine.update_weights(reference.state_dict())
        ask(engine, prompts())


@pytest.mark.slow
def test_a_vllm_engine_built_again_keeps_the_last_weights(tiny_model_path, reference):
    engine = make_vllm(tiny_model_path)
    perturb(reference, 9)
    engine.update_weights(reference.state_dict())
    engine.resize(16)
    assert_greedy_as(reference, engine)
    engine.close()
