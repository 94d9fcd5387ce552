"""Matrix products on a CPU, by the library and in the dtype that are fastest there.

torch asks MKL for float32 products, which leaves the AVX-512 of AMD's CPUs unused: half of oneDNN's
speed where they have it, and where not a sixth more. bfloat16 products have a quarter of float32's
speed where the CPU emulates them, and half of it on an Intel CPU with AVX-512 BF16 and no AMX.
"""

from functools import cache
from typing import cast

import torch
from torch import Tensor

from rl_core.system.devices import cpu_info, has_fast_bfloat16


@cache
def prefers_onednn() -> bool:
    """Whether this CPU multiplies float32 faster through oneDNN than as torch does it."""
    is_slow_in_mkl = "AuthenticAMD" in cpu_info() and "avx512f" in cpu_info()
    return is_slow_in_mkl and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def product_operand(tensor: Tensor) -> Tensor:
    """Returns the tensor, its values unchanged, in the dtype in which `product` is fastest.

    Float32 for bfloat16 on a CPU that multiplies it no faster.
    """
    on_cpu = tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"
    return tensor.float() if on_cpu and not has_fast_bfloat16() else tensor


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns left [n, k] @ right.T [k, m], in the operands' dtype or `out`'s; has no gradient."""
    if left.dtype == torch.float32 and left.device.type == "cpu" and prefers_onednn():
        try:
            fast = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
        except RuntimeError as error:
            # Where memory is short oneDNN cannot write the code for a new shape; MKL needs none.
            if "could not create" not in str(error):
                raise
        else:
            return cast("Tensor", fast) if out is None else out.copy_(fast)
    if out is not None and out.dtype != left.dtype:
        return out.copy_(torch.mm(left, right.T))
    return torch.mm(left, right.T, out=out)


def product_in_float32(left: Tensor, right: Tensor) -> Tensor:
    """Returns `product` as float32; a card adds bfloat16 up so, and need not round the sum."""
    if left.dtype == torch.bfloat16 and left.device.type == "cuda":
        return torch.mm(left, right.T, out_dtype=torch.float32)
    return product(left, right).float()
