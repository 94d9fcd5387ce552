"""verl's own numbers as tensors; see tests/golden/README.md for their conventions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

_GOLDEN = Path(__file__).parents[2] / "golden" / "verl_core_algos.npz"


@pytest.fixture(scope="session")
def golden() -> dict[str, Tensor]:
    with np.load(_GOLDEN) as arrays:
        tensors = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}
    tensors["in.response_mask"] = tensors["in.response_mask"].bool()
    return tensors


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
