"""Matrix products on a CPU, with the library and the dtype that are fastest on it.

torch uses MKL for float32 products, which does not use AVX-512 on AMD's CPUs: if they have it, MKL
has half of oneDNN's speed; if not, a sixth more than oneDNN's. bfloat16 products have a quarter of
float32's speed if the CPU emulates them, and half on an Intel CPU with AVX-512 BF16 but no AMX.
"""

from functools import cache
from typing import cast

import torch
from torch import Tensor

from rl_core.system.devices import cpu_info, has_fast_bfloat16


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN multiplies float32 faster on this CPU than MKL, which torch uses."""
    is_slow_in_mkl = "AuthenticAMD" in cpu_info() and "avx512f" in cpu_info()
    return is_slow_in_mkl and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def product_operand(tensor: Tensor) -> Tensor:
    """Returns the tensor, its values unchanged, in the dtype in which `product` is fastest.

    That is float32 for a bfloat16 tensor on a CPU that has no fast bfloat16 products.
    """
    on_cpu = tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"
    return tensor.float() if on_cpu and not has_fast_bfloat16() else tensor


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns left [n, k] @ right.T [k, m], in the operands' dtype or `out`'s; has no gradient."""
    if left.dtype == torch.float32 and left.device.type == "cpu" and prefers_onednn():
        try:
            fast = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        except RuntimeError as error:
            # If memory is short, oneDNN cannot generate code for a new shape; MKL needs none.
            if "could not create" not in str(error):
                raise
        else:
            return cast("Tensor", fast) if out is None else out.copy_(fast)
    if out is not None and out.dtype != left.dtype:
        return out.copy_(torch.mm(left, right.T))
    return torch.mm(left, right.T, out=out)


def product_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """Returns `product` as float32; a card sums bfloat16 in float32, so the sum is not rounded."""
    if left.dtype == torch.bfloat16 and left.device.type == "cuda":
        return torch.mm(left, right.T, out_dtype=torch.float32)
    return product(left, right).float()
