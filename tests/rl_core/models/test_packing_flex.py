"""Packed rows by FlexAttention beside the padded rows of transformers' SDPA, each layer's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.config.run import RunConfig
from rl_core.models import decoder, fast_linear, kernels, loading, packing, shared_prefix
from rl_core.models.forward import forward_pass
from rl_core.models.lora import add_adapters
from tests.support.flex import allow_on_a_cpu

CPU = torch.device("cpu")
VOCAB = 24
KINDS = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}


@pytest.fixture(autouse=True)
def as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_on_a_cpu(monkeypatch)
    monkeypatch.setattr(decoder, "supports", lambda backbone: False)
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: False)


def make_model(kind: str, *, seed: int = 0, num_kv_heads: int = 1, group: int = 3) -> Any:
    config, model = KINDS[kind]
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB, "hidden_size": 12, "intermediate_size": 8, "num_hidden_layers": 2,
        "head_dim": 16, "initializer_range": 0.3, "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_kv_heads * group, "attn_implementation": "sdpa",
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    return model(config(**shape)).eval()


@st.composite
def models(draw: st.DrawFn) -> Any:
    return make_model(
        draw(st.sampled_from(sorted(KINDS))),
        seed=draw(st.integers(0, 99)),
        num_kv_heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 3)),
    )


@st.composite
def batches(draw: st.DrawFn, make_rollout: Callable[..., Any]) -> TrainBatch:
    """Ragged groups of one and of several responses, some over more than a block of 128."""
    draws = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def tokens(longest: int) -> list[int]:
        return torch.randint(VOCAB, (draw(st.integers(1, longest)),), generator=draws).tolist()

    rollouts = []
    for group in range(draw(st.integers(1, 4))):
        prompt = tokens(draw(st.sampled_from([3, 150])))
        for _ in range(draw(st.integers(1, 4))):
            rollouts.append(make_rollout(prompt, tokens(60), group_id=group))
    batch = collate(draw(st.permutations(rollouts)), pad_id=0)
    if draw(st.booleans()):  # the env wrote some, but for the first and the last of a response
        inside = torch.arange(batch.rollout_logprobs.shape[1]) < batch.response_lengths[:, None] - 1
        inside[:, 0] = False
        batch = replace(batch, env_mask=inside & (torch.rand(inside.shape, generator=draws) < 0.5))
    return batch


def outcome(model: Any, batch: TrainBatch, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Log-probs, entropy, values of a shared trunk, and every gradient."""
    critic = loading.make_critic(model, share_trunk=True)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.head.weight)
    out = forward_pass(batch, actor=model, critic=critic, with_entropy=True, compute_dtype=dtype)
    told = [out.logprobs, out.entropy, out.values]
    model.zero_grad()
    sum((x * torch.randn(x.shape)).sum() for x in told).backward()
    learning = [p for p in (*model.parameters(), *critic.parameters()) if p.requires_grad]
    gradients = [p.grad for p in dict.fromkeys(learning)]
    return [x.detach() for x in (*told, *gradients)]


def assert_relatively_close(found: list[Tensor], expected: list[Tensor], allowed: float) -> None:
    # Of a token that sees itself alone, queries and keys have no gradient but what rounding leaves.
    rounding = 1e-7 * max(float(other.norm()) for other in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= allowed * other.norm() + rounding


@settings(max_examples=12, derandomize=True, deadline=None)
@given(data=st.data())
def test_all_it_says_and_every_gradient_are_those_of_padded_rows(
    make_rollout: Callable[..., Any], data: st.DataObject
) -> None:
    plain, batch = data.draw(models()), data.draw(batches(make_rollout))
    if data.draw(st.booleans(), label="adapters"):
        plain.requires_grad_(False)
        add_adapters(plain, rank=2, alpha=4.0)
    flex = copy.deepcopy(plain)
    packing.use_flex(flex)
    if data.draw(st.booleans(), label="checkpointed"):
        loading.checkpoint_gradients(flex)
    alone = replace(batch, group_ids=torch.arange(len(batch)))  # no prompt is shared
    assert_relatively_close(outcome(flex, batch), outcome(plain, alone), 1e-5)


def test_in_bfloat16_it_rounds_as_sdpa_does(make_batch: Callable[..., TrainBatch]) -> None:
    batch, exact = make_batch(group_size=4), make_model("qwen2")
    batch = replace(batch, input_ids=batch.input_ids % VOCAB)
    flex = copy.deepcopy(exact)
    packing.use_flex(flex)
    seen: set[torch.dtype] = set()

    def kernel(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Any:
        seen.update({query.dtype, key.dtype, value.dtype})
        return torch_flex.flex_attention(query, key, value, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "flex_kernel", lambda: kernel)
        rounded = outcome(flex, batch, torch.bfloat16)
    assert seen == {torch.bfloat16}
    assert_relatively_close(rounded, outcome(exact, batch, torch.bfloat16), 0.05)


def test_what_is_seen_by_hand(make_rollout: Callable[..., Any]) -> None:
    rollouts = [
        make_rollout([5, 6, 7], [8, 9], group_id=3),
        make_rollout([4], [3], group_id=1),
        make_rollout([5, 6, 7], [2], group_id=3),
    ]
    batch = collate(rollouts, pad_id=0)
    mask = packing.PackedRows.of(batch).seen(batch.prompt_lengths)
    # 5 and 6 of the prompt; 7 and 8 of the first row; 4 of the second; 7 of the third.
    assert whole_mask(mask).int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def whole_mask(mask: torch_flex.BlockMask) -> Tensor:
    """Which token sees which, pair by pair, whatever its blocks say."""
    index = torch.arange(mask.seq_lengths[0])
    zero = torch.zeros((), dtype=torch.int64)
    return mask.mask_mod(zero, zero, index[:, None], index)


@settings(max_examples=10, derandomize=True, deadline=None)
@given(data=st.data())
def test_blocks_are_those_of_all_pairs(
    make_rollout: Callable[..., Any], data: st.DataObject
) -> None:
    """No block is left out of which anything is seen; one said to be seen wholly is."""
    batch = data.draw(batches(make_rollout))
    mask = packing.PackedRows.of(batch).seen(batch.prompt_lengths)
    num_tokens = mask.seq_lengths[0]
    theirs = torch_flex.create_block_mask(mask.mask_mod, None, None, num_tokens, num_tokens, "cpu")
    assert torch.equal(mask.to_dense(), theirs.to_dense())
    assert wholly_seen(mask) <= wholly_seen(theirs)
    assert mask.full_q_num_blocks.sum() == mask.full_kv_num_blocks.sum()


def wholly_seen(mask: torch_flex.BlockMask) -> set[tuple[int, int]]:
    counts, blocks = mask.full_kv_num_blocks[0, 0], mask.full_kv_indices[0, 0]
    return {(row, int(blocks[row, i])) for row in range(len(counts)) for i in range(counts[row])}


def test_a_long_response_has_blocks_that_are_wholly_seen(make_rollout: Callable[..., Any]) -> None:
    """Of these no pair is looked at one by one."""
    batch = collate([make_rollout([1] * 257, [2] * 300, group_id=0) for _ in range(2)], pad_id=0)
    mask = packing.PackedRows.of(batch).seen(batch.prompt_lengths)
    assert mask.full_kv_num_blocks.flatten().tolist() == [0, 1, 2, 3, 2, 2, 0]
    assert mask.kv_num_blocks.flatten().tolist() == [1, 1, 1, 1, 3, 2, 5]


def test_a_block_that_one_token_does_not_see_is_looked_at(make_rollout: Callable[..., Any]) -> None:
    rollouts = [make_rollout([4], [5], group_id=1), make_rollout([1] * 129, [2] * 127, group_id=0)]
    batch = collate(rollouts, pad_id=0)
    mask = packing.PackedRows.of(batch).seen(batch.prompt_lengths)
    # The first block is the prompt of 129 but for its last token; the second begins with the 4.
    assert mask.seq_lengths == (256, 256)
    assert mask.full_kv_num_blocks.flatten().tolist() == [0, 0]
    assert mask.kv_num_blocks.flatten().tolist() == [1, 2]


@pytest.mark.usefixtures("compiling")
def test_one_trace_serves_all_lengths(
    make_batch: Callable[..., TrainBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card but for the code: traced forward and backward, by itself and in a layer."""
    from torch._dynamo.backends.common import aot_autograd

    num_graphs = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    traced = torch.compile(
        torch_flex.flex_attention, dynamic=True, backend=aot_autograd(fw_compiler=count)
    )
    plain = make_model("qwen2")
    several = [make_batch(seed, group_size=size) for seed, size in ((0, 1), (1, 4))]
    several = [replace(batch, input_ids=batch.input_ids % VOCAB) for batch in several]
    expected = [outcome(plain, batch) for batch in several]
    for whole_layers in (False, True):
        torch._dynamo.reset()
        flex, num_graphs = copy.deepcopy(plain), 0
        packing.use_flex(flex)
        loading.checkpoint_gradients(flex)
        if whole_layers:
            kernels.compile_layers(flex, backend=aot_autograd(fw_compiler=count))
        monkeypatch.setattr(
            packing,
            "flex_kernel",
            lambda: torch_flex.flex_attention if torch.compiler.is_compiling() else traced,
        )
        for batch, wanted in zip(several, expected, strict=True):
            assert_relatively_close(outcome(flex, batch), wanted, 1e-5)
        assert 2 <= num_graphs <= 12, num_graphs


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_sdpa_is_handed_no_mask_on_a_card(
    make_batch: Callable[..., TrainBatch],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    group_size: int,
    checkpointed: bool,
) -> None:
    """Ragged rows, prompts shared or not, checkpointed or not: a mask would cost flash kernels."""
    handed: list[tuple[object, object]] = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def note(*tensors: Tensor, attn_mask: object, is_causal: object, **settings: Any) -> Tensor:
        handed.append((attn_mask, is_causal))
        return sdpa(*tensors, attn_mask=attn_mask, is_causal=is_causal, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", note)
    monkeypatch.setattr(shared_prefix, "_on_card", lambda batch: True)
    model, batch = make_model(kind), make_batch(group_size=group_size)
    packing.allow_packing(model)
    if checkpointed:
        loading.checkpoint_gradients(model)
    outcome(model, replace(batch, input_ids=batch.input_ids % VOCAB))
    assert len(handed) >= 2
    assert set(handed) == {(None, True)}


def test_what_cannot_is_refused(
    tiny_model_path: Path, settings: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": {"attention": "flex"}}
    with pytest.raises(ValueError, match=r"model\.attention=flex is for a GPU learner.*use sdpa"):
        settings(**asked)
    config = settings(**asked, resources={"learner_gpus": 1})
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"attention=flex wants Triton.*or use sdpa"):
        loading.load_models(config, tiny_model_path, None, CPU)
    monkeypatch.setattr(kernels, "find_spec", lambda name: "found")
    models = loading.load_models(config, tiny_model_path, None, CPU)
    for model in (models.actor.get_decoder(), models.reference, models.critic):
        backbone = getattr(model, "backbone", model)
        assert packing.wants_packed_rows(backbone)
    small = make_model("qwen2")
    small.config.head_dim = 8
    with pytest.raises(ValueError, match=r"heads of 8 are below 16, use sdpa"):
        packing.use_flex(small)
    window = transformers.MistralConfig(
        vocab_size=16, hidden_size=32, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    mistral = transformers.MistralForCausalLM(window)
    with pytest.raises(ValueError, match=r"MistralForCausalLM sees a window of positions"):
        loading._choose_kernels(mistral, config.model)
