"""torch.compile on a CPU, for tests of what a card compiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def compiling() -> Iterator[None]:
    """Allows it within a test, and afterwards forbids it again.

    Not by monkeypatch: what it puts back into this module of torch's is gone, and vLLM, in the same
    process, finds it missing.
    """
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(disable=False):
        yield
