"""Rows of a matrix: index_select for distinct rows, with a backward pass that copies."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Returns the given rows of x [rows, ...], int64 [n], which must be distinct."""
    return cast("Tensor", _SelectRows.apply(x, index))  # type: ignore[no-untyped-call]  # torch leaves apply untyped


class _SelectRows(torch.autograd.Function):
    """index_select for distinct rows: its backward copies, where torch's would add row by row."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape  # type: ignore[attr-defined]  # torch lets a context carry anything
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors  # type: ignore[attr-defined]  # set by save_for_backward
        full = grads[0].new_zeros(ctx.shape)  # type: ignore[attr-defined]  # set in forward
        return full.index_copy_(0, index, grads[0]), None
