"""FlexAttention on a CPU, as it is computed on a card before a compiler has made it a kernel."""

from __future__ import annotations

import pytest
import torch.nn.attention.flex_attention as torch_flex

from rl_core.models import packing


def allow_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch's own plain products stand for the kernel; forward and backward pass are theirs.

    Torch refuses a backward pass on a CPU, for which no compiler of its has a kernel.
    """
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(packing, "flex_kernel", lambda: torch_flex.flex_attention)
