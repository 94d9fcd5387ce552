import pytest
import torch
from torch import nn

from rl_core.models import fast_linear, loading
from rl_core.models import matmul as products
from rl_core.models.fast_linear import (
    FastLinear,
    cast_once,
    lay_out_for_few_rows,
    use_fast_products,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("has_bias", [True, False])
def test_results_and_gradients_are_those_of_a_plain_layer(monkeypatch, has_bias):
    for module in (fast_linear, products):  # as on a CPU where oneDNN is faster: all have it
        monkeypatch.setattr(module, "prefers_onednn", lambda: True)
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=has_bias)
    fast = nn.Linear(24, 40, bias=has_bias)
    fast.load_state_dict(plain.state_dict())
    use_fast_products(fast)
    assert type(fast) is FastLinear
    x = torch.randn(3, 5, 24, requires_grad=True)
    weights = torch.randn(3, 5, 40)
    gradients = []
    for layer in (plain, fast):
        result = layer(x)
        torch.testing.assert_close(result, plain(x), atol=1e-5, rtol=1e-5)
        parameters = [x, *layer.parameters()]
        gradients.append(torch.autograd.grad((result * weights).sum(), parameters))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fast(x), plain(x))


def test_weights_that_are_cast_once_give_the_same_gradients(tiny_model_path):
    model = loading.load_actor(tiny_model_path, CPU)
    trunk = model.get_decoder()
    layers = [module for module in trunk.modules() if isinstance(module, nn.Linear)]

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        for ids in ([[5, 6, 7, 8]], [[9, 3]]):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                states = trunk(torch.tensor(ids)).last_hidden_state
            states.square().sum().backward()
        return [layer.weight.grad.clone() for layer in layers if layer.weight.grad is not None]

    expected = gradients()
    with cast_once(trunk):
        copies = [layer.forward.keywords["weight"] for layer in layers]
        assert {copy.dtype for copy in copies} == {torch.bfloat16}
        actual = gradients()
    assert len(actual) == len(layers)
    assert all(map(torch.equal, actual, expected))
    assert all("forward" not in vars(layer) for layer in layers)


@pytest.mark.parametrize(("is_faster", "kind"), [(True, FastLinear), (False, nn.Linear)])
def test_a_models_layers_are_replaced_where_onednn_is_faster(
    tiny_model_path, monkeypatch, is_faster, kind
):
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: is_faster)
    model = loading.load_actor(tiny_model_path, CPU)
    assert {type(m) for m in model.modules() if isinstance(m, nn.Linear)} == {kind}


def test_matrices_by_columns_compute_the_same_and_take_other_weights_in_place(
    tiny_model_path, monkeypatch
):
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: False)  # as on an Intel CPU
    ids = torch.tensor([[5, 6, 7, 8]])
    plain = loading.load_causal_lm(tiny_model_path, torch.float32)
    model = loading.load_causal_lm(tiny_model_path, torch.float32)
    lay_out_for_few_rows(model)
    head, tokens = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert head.T.is_contiguous()
    assert head is tokens
    for scale in (1.0, 0.5):
        for name, weight in plain.state_dict().items():
            model.state_dict()[name].copy_(weight.mul_(scale))
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-5)
