"""The Muon optimizer for small matrices: orthogonalised momentum, all matrices of a shape at once.

Not torch.optim.Muon, which works in bfloat16 and one matrix at a time: on a CPU without bfloat16
units that costs more than a small model's forward and backward pass together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from rl_core.system.threads import MicroBatchThreads

NEWTON_SCHULZ_STEPS: Final = 5
_NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Returns the matrices with singular values near 1 (about 0.7 to 1.2), vectors as they were.

    Args:
        matrices: float32 [N, rows, columns], rows <= columns.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = _NEWTON_SCHULZ
    result: Tensor = matrices / (matrices.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = torch.bmm(result, result.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        result = torch.baddbmm(result, polynomial, result, beta=a)
    return result


class Muon:
    """Nesterov momentum on matrices, each update orthogonalised; no weight decay.

    Args:
        matrices: Parameters of two dimensions; their gradients are read by `step`.
        momentum: Decay of the running mean of gradients [0, 1).
    """

    def __init__(self, matrices: Sequence[torch.nn.Parameter], *, momentum: float = 0.95) -> None:
        self._momentum = momentum
        self._by_shape: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            self._by_shape[(min(matrix.shape), max(matrix.shape))].append(matrix)
        self._means = {id(matrix): torch.zeros_like(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, *, lr: float, threads: MicroBatchThreads) -> None:
        """Moves each matrix by `lr * sqrt(max(1, rows / columns))` along its orthogonal update.

        Args:
            lr: learning rate of this step.
            threads: a shape each is computed on them.
        """
        groups = list(self._by_shape.values())
        for matrices, updates in zip(groups, threads.map(self._updates, groups), strict=True):
            for matrix, update in zip(matrices, updates, strict=True):
                rows, columns = matrix.shape
                scale = max(1.0, rows / columns) ** 0.5
                matrix.sub_(update if rows <= columns else update.mT, alpha=lr * scale)

    def _updates(self, matrices: Sequence[torch.nn.Parameter]) -> Tensor:
        return orthogonalise(torch.stack([self._wide_momentum(m) for m in matrices]))

    def _wide_momentum(self, matrix: torch.nn.Parameter) -> Tensor:
        """Updates the running mean; returns its look-ahead, turned so that rows <= columns."""
        gradient = matrix.grad
        assert gradient is not None, "step() comes after backward()"
        mean = self._means[id(matrix)].lerp_(gradient, 1 - self._momentum)
        ahead = torch.lerp(gradient, mean, self._momentum)
        return ahead if matrix.shape[0] <= matrix.shape[1] else ahead.mT
