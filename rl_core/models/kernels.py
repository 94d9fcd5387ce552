"""Faster kernels for a model: torch.compile's, Liger's. Not those of attention, see packing.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import transformers
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def require_triton(setting: str, instead: str) -> None:
    """Refuses a setting where torch.compile cannot write a GPU's kernels.

    Args:
        setting: as it was asked for.
        instead: the value that wants no Triton.

    Raises:
        ValueError: if Triton is missing.
    """
    if find_spec("triton") is None:
        raise ValueError(
            f"{setting} wants Triton, which is not installed beside this torch: install torch's "
            f"own CUDA build, or use {instead}"
        )


def compile_layers(model: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Makes each layer of a decoder compile itself when it is first called; weights keep names.

    All layers of a model are one piece of code, compiled once for all lengths.

    Args:
        model: is changed in place; a copy of it is not compiled.
        backend: torch.compile's; `inductor` writes Triton kernels, and wants Triton.

    Raises:
        ValueError: if Triton is missing.
    """
    if backend == "inductor":
        require_triton("model.use_torch_compile=true", "false")
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(backend=backend, dynamic=True)


def use_liger(model: transformers.PreTrainedModel) -> None:
    """Makes a model's RMSNorm, SwiGLU and rotary positions Liger's Triton kernels.

    Args:
        model: is changed in place, and with it all models of its architecture in this process.

    Raises:
        ValueError: if Liger is missing, or does not know the architecture.
    """
    if find_spec("liger_kernel") is None:
        raise ValueError(
            "model.use_liger=true wants the package liger-kernel, which is not installed: "
            "uv pip install -c constraints.txt liger-kernel, or use false"
        )
    from liger_kernel.transformers import monkey_patch  # wants Triton, and takes seconds

    known = monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN
    kind = model.config.model_type
    if kind not in known:
        raise ValueError(f"model.use_liger=true: Liger has no kernels for a {kind}, use false")
    # Log-probs come from hidden states: the model's own loss is never computed.
    known[kind](
        model=model,
        rope=True,
        rms_norm=True,
        swiglu=True,
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )
