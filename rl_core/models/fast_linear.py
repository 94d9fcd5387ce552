"""Linear layers whose float32 products use the fastest library on this CPU (`matmul.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_core.models.matmul import prefers_onednn, product


def use_fast_products(model: nn.Module) -> None:
    """Makes the model's plain linear layers compute with `product`, if that is faster.

    In place; weights, names and (up to rounding) results stay the same.
    """
    if not prefers_onednn():
        return
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu":
            module.__class__ = FastLinear


def lay_out_for_few_rows(model: nn.Module) -> None:
    """Stores linear layers' matrices column by column: MKL transposes others in each product.

    In place; shapes and names stay. On a CPU each weight then has memory of its own, and none is
    mapped from the file that the model was loaded from.
    """
    matrices = {module.weight for module in model.modules() if type(module) is nn.Linear}
    for weight in model.parameters():
        if weight.device.type != "cpu":
            continue
        if weight in matrices and weight.dtype == torch.float32 and not prefers_onednn():
            weight.data = weight.data.T.clone(memory_format=torch.contiguous_format).T
        else:
            weight.data = weight.data.clone()


@contextmanager
def cast_once(model: nn.Module) -> Iterator[None]:
    """Makes linear layers compute in bfloat16 with one copy of each weight for all passes.

    Autocast makes one in each pass, and another for each recomputed layer. Gradients still reach
    the weights themselves. Packed weights (`Linear4bit`) are no numbers to cast.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and layer.weight.is_floating_point()
    ]
    for layer in layers:
        copy = layer.weight.to(torch.bfloat16)
        layer.forward = partial(functional.linear, weight=copy, bias=layer.bias)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class FastLinear(nn.Linear):
    """nn.Linear by `product`, backward pass included; under autocast it is nn.Linear."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns x W' + b, [..., out], of x [..., in]."""
        on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if x.dtype != torch.float32 or not on_cpu:
            return super().forward(x)
        rows = x.reshape(-1, x.shape[-1])
        result = cast("Tensor", _Product.apply(rows, self.weight, self.bias))  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        return result.view(*x.shape[:-1], -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        result = product(x, weight)
        return result if bias is None else result.add_(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(grad, weight.T) if needs_x else None,
            product(grad.T, x.T) if needs_weight else None,
            grad.sum(dim=0) if needs_bias else None,
        )
