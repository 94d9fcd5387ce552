"""Packed rows with gradient checkpointing against transformers, one row at a time, in float64."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.models import fast_linear, loading, packing, shared_prefix
from rl_core.models.forward import forward_pass

CPU = torch.device("cpu")
VOCAB = 48
KINDS = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}


@st.composite
def models(draw: st.DrawFn) -> transformers.PreTrainedModel:
    kind = draw(st.sampled_from(sorted(KINDS)))
    config, model_class = KINDS[kind]
    num_kv_heads = draw(st.integers(1, 3))
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": draw(st.sampled_from([12, 24])),
        "intermediate_size": draw(st.sampled_from([8, 20])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": num_kv_heads * draw(st.integers(1, 2)),
        "num_key_value_heads": num_kv_heads,
        "head_dim": draw(st.sampled_from([2, 8])),
        "tie_word_embeddings": draw(st.booleans()),
        "initializer_range": 0.3,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-2])),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    if kind == "llama":
        shape |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    torch.manual_seed(draw(st.integers(0, 99)))
    model = model_class(config(**shape)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):  # as training leaves them, not as made
                weight.add_(0.3 * torch.randn(weight.shape))
    return model


@st.composite
def batches(draw: st.DrawFn, make_rollout: Callable[..., Any]) -> TrainBatch:
    tokens = st.integers(0, VOCAB - 1)
    rollouts = []
    for group in range(draw(st.integers(1, 4))):
        prompt = draw(st.lists(tokens, min_size=1, max_size=9))
        for _ in range(draw(st.integers(1, 4))):
            response = draw(st.lists(tokens, min_size=1, max_size=9))
            rollouts.append(make_rollout(prompt, response, group_id=group))
    return collate(draw(st.permutations(rollouts)), pad_id=draw(tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_on_a_cpu_is_float32_under_autocast(dtype, masked):
    """bfloat16's would differ by a hundredth; and takes longer."""
    query, key, value = (torch.randn(1, 2, 5, 4).to(dtype) for _ in range(3))
    mask = torch.zeros(1, 1, 5, 5, dtype=dtype).masked_fill(torch.eye(5).bool(), -1e9)
    layer = torch.nn.Module()
    layer.is_causal = not masked
    with torch.autocast("cpu", torch.bfloat16):
        read, _ = packing.attention(layer, query, key, value, mask if masked else None)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), mask.float() if masked else None, 0.0, not masked
    )
    assert read.equal(expected.transpose(1, 2))


def states_by_row(backbone: Any, batch: TrainBatch) -> Tensor:
    """The states before the response tokens, each row computed alone, without padding."""
    states = []
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        read = backbone(batch.input_ids[row : row + 1, :length], use_cache=False)
        states.append(read.last_hidden_state[0, prompt - 1 : length - 1])
    return torch.cat(states)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(data=st.data())
def test_states_and_every_gradient_are_those_of_rows_alone(make_rollout, data):
    model, batch = data.draw(models()).double(), data.draw(batches(make_rollout))
    plain = copy.deepcopy(model).get_decoder()
    packing.allow_packing(model)
    loading.checkpoint_gradients(model)
    backbone = model.get_decoder()
    results = []
    with pytest.MonkeyPatch.context() as patch:  # 0: whole rows, as on a card
        patch.setattr(packing, "_SHORT_TOKENS", data.draw(st.sampled_from([0, 256])))
        for module, states in (
            (backbone, packing.packed_states(backbone, batch)),
            (plain, states_by_row(plain, batch)),
        ):
            weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
            (states * weights).sum().backward()
            results.append((states.detach(), [weight.grad for weight in module.parameters()]))
    # Norms are computed in float32 whatever the type.
    torch.testing.assert_close(*results, atol=2e-5, rtol=1e-4)


def test_packed_rows_by_hand(make_rollout):
    rollouts = [
        make_rollout([5, 6, 7], [8, 9], group_id=3),
        make_rollout([4], [3], group_id=1),
        make_rollout([5, 6, 7], [2], group_id=3),
    ]
    packed = packing.PackedRows.of(collate(rollouts, pad_id=0))
    # 5 and 6 once; then of each row the last token of its prompt, and its response but for the end.
    assert packed.ids.tolist() == [[5, 6, 7, 8, 4, 7]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 2]]
    assert packed.num_prompt_tokens == 2
    assert packed.whole.places.tolist() == [[0, 1, 2, 3], [4, 4, 4, 4], [0, 1, 5, 5]]
    assert packed.whole.places.flatten()[packed.whole.slots].tolist() == [0, 1, 2, 3, 4, 5]
    assert packed.prompts.places.tolist() == [[0, 0], [0, 1]]  # a prompt of one token has none
    assert packed.prompts.slots.tolist() == [2, 3]
    assert packed.responses.places.tolist() == [[2, 3], [4, 4], [5, 5]]
    assert packed.responses.slots.tolist() == [0, 1, 2, 4]
    assert packed.sees[0].int().tolist() == [[[1, 1, 1, 0], [1, 1, 1, 1]]]
    assert packed.sees[1].int().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0]]]


def test_without_packed_rows_no_bit_changes(tiny_model_path, make_batch):
    batch, states = make_batch(group_size=1), []
    for allowed in (False, True):
        model = loading.load_actor(tiny_model_path, CPU)
        if allowed:
            packing.allow_packing(model)
        assert packing.takes_packed_rows(model.get_decoder()) is allowed
        states.append(shared_prefix.response_states(model.get_decoder(), batch))
    assert torch.equal(*states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpointed_groups_keep_their_prompt_once(tiny_model_path, make_rollout, dtype):
    """8 responses of 4 tokens to a prompt of 65 keep 64 + 8 * 4 of 8 * 69 tokens."""
    batch = collate([make_rollout([7] * 65, [8, 9, 10, 11 + i]) for i in range(8)], pad_id=0)
    model = loading.load_actor(tiny_model_path, CPU)
    loading.checkpoint_gradients(model)
    kept_bytes, logprobs = [], []
    for allowed in (False, True):
        if allowed:
            packing.allow_packing(model)
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            if tensor.is_floating_point():
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = forward_pass(batch, actor=model, compute_dtype=dtype)
        weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        kept_bytes.append(sum(size for at, size in kept.items() if at not in weights))
        logprobs.append(outputs.logprobs)
    torch.testing.assert_close(*logprobs, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0)
    assert kept_bytes[1] < kept_bytes[0] / 2


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_sdpa_is_handed_no_mask_on_a_card(make_batch, monkeypatch, kind, group_size, checkpointed):
    """Ragged rows, prompts shared or not, checkpointed or not: a mask would cost flash kernels."""
    handed: list[tuple[object, object]] = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def note(*tensors: Tensor, attn_mask: object, is_causal: object, **settings: Any) -> Tensor:
        handed.append((attn_mask, is_causal))
        return sdpa(*tensors, attn_mask=attn_mask, is_causal=is_causal, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", note)
    monkeypatch.setattr(shared_prefix, "_on_card", lambda batch: True)
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: False)
    config, model_class = KINDS[kind]
    model = model_class(
        config(
            vocab_size=VOCAB, hidden_size=12, intermediate_size=8, num_hidden_layers=2, head_dim=16,
            num_attention_heads=3, num_key_value_heads=1, attn_implementation="sdpa",
            pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip
    packing.allow_packing(model)
    if checkpointed:
        loading.checkpoint_gradients(model)
    batch = make_batch(group_size=group_size)
    batch = replace(batch, input_ids=batch.input_ids % VOCAB)
    out = forward_pass(batch, actor=model, with_entropy=True, compute_dtype=torch.float32)
    out.logprobs.sum().backward()
    assert len(handed) >= 2
    assert set(handed) == {(None, True)}
