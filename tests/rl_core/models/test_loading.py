import pytest
import torch
import transformers

from rl_core.models import loading
from rl_core.models.logprobs import Head
from tests.support.model_shapes import SMALL

CPU = torch.device("cpu")


def test_a_model_without_checkpointing_layers_is_refused(tiny_model_path):
    model = loading.load_actor(tiny_model_path, CPU)
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ValueError, match="gradient_checkpointing"):
        loading.checkpoint_gradients(model)


def test_weights_are_complete_and_name_a_tied_embedding_once_and_an_untied_head(actor):
    weights = loading.complete_weights(actor)
    assert "lm_head.weight" not in weights
    assert set(weights) == {name for name, _ in actor.named_parameters()}
    assert not any(tensor.requires_grad for tensor in weights.values())
    untied = actor.config.to_dict() | {"tie_word_embeddings": False}
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_dict(untied))
    assert torch.equal(loading.complete_weights(model)["lm_head.weight"], model.lm_head.weight)


def test_a_missing_model_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match="no such model") as error:
        loading.load_actor(tmp_path / "nope", CPU)
    assert "\n" not in str(error.value)


def test_a_model_with_logits_of_another_formula_is_refused(tmp_path, monkeypatch):
    config = transformers.Gemma2Config(**SMALL, head_dim=32, final_logit_softcapping=0.1)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    model = loading.load_actor(tmp_path, CPU)
    assert model.config._attn_implementation == "eager"  # SDPA would leave out the scores' cap
    monkeypatch.setattr(loading.Head, "of", lambda model: Head(model.lm_head.weight))
    with pytest.raises(ValueError, match="transformed after the output embedding"):
        loading.load_actor(tmp_path, CPU)
