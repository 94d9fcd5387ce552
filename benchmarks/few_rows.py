"""CPU ms of all products of SmolLM2's 30 layers for few rows: plain, and with packed weights.

OMP_NUM_THREADS=1 python benchmarks/few_rows.py bfloat16|float32 ROWS ...
"""

import sys
import time
from collections.abc import Callable

import torch

from rl_core.models.matmul import product

SHAPES = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]


def main() -> None:
    """Prints the least of three for each number of rows."""
    torch.set_num_threads(1)
    dtype = getattr(torch, sys.argv[1])
    weights = [torch.randn(shape).to(dtype) for _ in range(30) for shape in SHAPES]
    widths = [weight.shape[1] for weight in weights]
    ops = torch.ops.mkldnn
    for rows in map(int, sys.argv[2:]):
        x = {width: torch.randn(rows, width).to(dtype) for width in set(widths)}
        packed = [ops._reorder_linear_weight(weight, rows) for weight in weights]

        def plain(x: dict[int, torch.Tensor] = x) -> None:
            for width, weight in zip(widths, weights, strict=True):
                product(x[width], weight)

        def by_packed(x: dict[int, torch.Tensor] = x, packed: list[torch.Tensor] = packed) -> None:
            for width, weight in zip(widths, packed, strict=True):
                ops._linear_pointwise(x[width], weight, None, "none", [], "")

        taken: dict[Callable[[], None], list[float]] = {plain: [], by_packed: []}
        with torch.inference_mode():
            for way in (*taken, *taken, *taken, *taken):
                start = time.process_time()
                way()
                taken[way].append(time.process_time() - start)
        print(rows, *(f"{1e3 * min(ms[1:]):.1f}" for ms in taken.values()))


if __name__ == "__main__":
    main()
