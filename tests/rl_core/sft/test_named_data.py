from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.sft.named_data import planned_sft_steps


def steps(**sft: Any) -> int:
    return planned_sft_steps(RunConfig.model_validate({"model": {"path": "x/y"}, "sft": sft}))


def test_steps_are_known_before_anything_is_read_as_tokens(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "response": "b"}\n' * 5)
    assert steps(data="traces") == 300
    assert steps(data="traces", steps=7) == steps(data=str(rows), steps=7) == 7
    assert steps(data=str(rows), epochs=2, batch_size=4) == 3  # 10 rows, the last 2 alone
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        steps(data=str(tmp_path / "none.jsonl"))
