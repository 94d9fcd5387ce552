from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from rl_core.algos import matmul
from rl_core.models import fast_linear, loading
from tests.support.model_shapes import SMALL

CPU = torch.device("cpu")


def test_a_model_without_checkpointing_layers_is_refused(tiny_model_path):
    model = loading.load_actor(tiny_model_path, CPU)
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ValueError, match="gradient_checkpointing"):
        loading.checkpoint_gradients(model, True)


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


def test_a_model_with_transformed_logits_is_refused(tmp_path):
    config = transformers.Gemma2Config(**SMALL, head_dim=32, final_logit_softcapping=0.1)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="transformed after the output embedding"):
        loading.load_actor(tmp_path, CPU)


class _Counting(TorchDispatchMode):
    """Counts operations by name, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("prefers_onednn", "product"), [(False, "mm"), (True, "_linear_pointwise")]
)
def test_layers_compute_again_what_they_did_not_keep(
    tiny_model_path, monkeypatch, prefers_onednn, product
):
    """Selective ones their norms and activations, the others their products as well."""
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: prefers_onednn)
    monkeypatch.setattr(matmul, "prefers_onednn", lambda: prefers_onednn)
    counts = []
    for what in (False, "selective", True):
        model = loading.load_actor(tiny_model_path, CPU)
        if what:
            loading.checkpoint_gradients(model, what)
        with _Counting() as counting:
            read = model.get_decoder()(input_ids=torch.arange(8)[None], use_cache=False)
            read.last_hidden_state.sum().backward()
        counts.append(counting.counts)
    plain, selective, whole = counts
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    layers = model.config.num_hidden_layers
    assert plain["silu"] == plain[attention] == layers
    assert {name: selective[name] for name in (product, attention)} == {
        name: plain[name] for name in (product, attention)
    }
    assert selective["silu"] == whole["silu"] == whole[attention] == 2 * layers
    assert whole[product] >= plain[product] + 3 * layers
