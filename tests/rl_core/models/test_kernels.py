from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.models import decoder, fast_linear, kernels, loading, packing
from rl_core.models.forward import forward_pass

CPU = torch.device("cpu")


@pytest.mark.usefixtures("compiling")
def test_compiled_layers_give_the_same_gradients_for_all_lengths(
    tiny_model_path: Path,
    make_batch: Callable[..., TrainBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traced, forward and backward, without a compiler; packed rows and checkpointing beside it."""
    monkeypatch.setattr(decoder, "supports", lambda backbone: False)
    monkeypatch.setattr(fast_linear, "prefers_onednn", lambda: False)  # as it is on a GPU
    from torch._dynamo.backends.common import aot_autograd

    num_graphs, results = 0, []

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    for compiled in (False, True):
        model = loading.load_actor(tiny_model_path, CPU)
        packing.allow_packing(model)
        loading.checkpoint_gradients(model)
        names = list(model.state_dict())
        if compiled:
            kernels.compile_layers(model, backend=aot_autograd(fw_compiler=count))
        logprobs: list[Tensor] = []
        for seed, group_size in ((0, 1), (1, 4), (2, 2)):
            outputs = forward_pass(
                make_batch(seed, group_size=group_size), actor=model, compute_dtype=torch.float32
            )
            outputs.logprobs.sum().backward()
            logprobs.append(outputs.logprobs.detach())
        assert list(model.state_dict()) == names
        results.append([*logprobs, *(weight.grad for weight in model.parameters())])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    num_layers = model.config.num_hidden_layers
    # Padded and packed, each forward and backward: not once per layer and length.
    assert 2 <= num_graphs <= 12, (num_graphs, num_layers)


def test_no_compiler_is_said(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    model = loading.load_actor(tiny_model_path, CPU)
    with pytest.raises(ValueError, match=r"use_torch_compile=true wants Triton"):
        kernels.compile_layers(model)
    with pytest.raises(ValueError, match=r"use_liger=true wants the package liger-kernel"):
        kernels.use_liger(model)


def test_liger_refuses_what_it_does_not_know(tiny_model_path: Path) -> None:
    model = loading.load_actor(tiny_model_path, CPU)
    model.config.model_type = "abacus"
    with pytest.raises(ValueError, match="no kernels for a abacus"):
        kernels.use_liger(model)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_liger_takes_what_it_is_given(kind: str) -> None:
    from liger_kernel.transformers import monkey_patch

    taken = inspect.signature(monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN[kind]).parameters
    assert taken.keys() >= {
        *("model", "rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy")
    }
