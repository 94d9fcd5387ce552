"""Frozen linear layers whose weights take 4 bits each, with adapters that learn (QLoRA).

A weight is stored as NF4: blocks of 64 numbers, each one of 16 levels between minus and plus the
block's largest magnitude, which is kept in float32. A forward pass dequantizes a layer's weight and
frees it again, and so does the backward pass.

Source: Dettmers et al. 2023 (arXiv:2305.14314).
"""

from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from rl_core.models.bitsandbytes import load_bitsandbytes

_BLOCK = 64
_LEVELS = "nf4"
_READ_BY_TYPE = ("router", "classifier", "weights_proj")
"""Layers whose weights a class reads itself, or casts its input to."""


class Linear4bit(nn.Linear):
    """A linear layer that never learns; the bias of the layer it is made from stays as it is."""

    absmax: nn.Parameter
    """Each block's largest, float32; a parameter, so that models with shared weights share it."""

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        from bitsandbytes import functional

        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, has_bias, device="meta")
        packed, state = functional.quantize_4bit(
            layer.weight.detach().to(device), blocksize=_BLOCK, quant_type=_LEVELS
        )
        self.weight = nn.Parameter(packed, requires_grad=False)  # uint8 [in * out / 2, 1]
        self.absmax = nn.Parameter(state.absmax, requires_grad=False)
        if has_bias:
            self.bias = nn.Parameter(layer.bias.detach().to(device), requires_grad=False)

    def whole_weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the weight that this layer computes with, [out, in]."""
        from bitsandbytes import functional

        state = functional.QuantState(
            absmax=self.absmax.detach(),
            # As one row: with AVX-512 bitsandbytes 0.50 begins a new block at each row, which is
            # wrong from the second row on if rows are no whole number of blocks long.
            shape=torch.Size((1, self.out_features * self.in_features)),
            dtype=dtype,
            blocksize=_BLOCK,
            quant_type=_LEVELS,
        )
        whole: Tensor = functional.dequantize_4bit(self.weight.detach(), state)
        return whole.view(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W' + b, [..., out], of x [..., in], in autocast's type if that is on."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        result = cast("Tensor", _Product.apply(x, self))  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        return result if self.bias is None else result + self.bias.to(result.dtype)


class _Product(torch.autograd.Function):
    """x W'; the dequantized weight is not kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Linear4bit) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.whole_weight(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.whole_weight(grads[0].dtype), None


def pack_linear_layers(model: transformers.PreTrainedModel, device: torch.device) -> None:
    """Replaces each linear layer but the output embedding by one of 4 bits, on the device.

    The rest of the model, float32 on the CPU, stays there. Each layer is whole on the device for a
    moment.

    Raises:
        ValueError: bitsandbytes cannot do it here, or the model has no such layers.
    """
    load_bitsandbytes("model.load_in_4bit=true", device)
    output = model.get_output_embeddings()
    layers = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and layer is not output and name not in _READ_BY_TYPE
    ]
    if not layers:
        raise ValueError(
            f"model.load_in_4bit=true: {type(model).__name__} has no linear layers to pack"
        )
    for parent, name, layer in layers:
        setattr(parent, name, Linear4bit(layer, device))
