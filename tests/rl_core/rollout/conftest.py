"""Both engines, on the weights of one folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core.rollout.protocol import RolloutEngine
from tests.support.engines import ENGINES


@pytest.fixture(scope="module", params=list(ENGINES))
def any_engine(request: pytest.FixtureRequest, tiny_model_path: Path) -> Iterator[RolloutEngine]:
    engine = ENGINES[request.param](tiny_model_path)
    yield engine
    engine.close()


@pytest.fixture
def reference(tiny_model_path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32).eval()


@pytest.fixture
def engine(any_engine: RolloutEngine, reference: Any) -> RolloutEngine:
    """The engine with the folder's weights, whatever the last test left in it."""
    any_engine.update_weights(reference.state_dict())
    any_engine.policy_version = 0
    return any_engine
