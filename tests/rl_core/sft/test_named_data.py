from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.sft.named_data import check_sft, planned_sft_steps


def config(env: dict[str, Any] | None = None, **sft: Any) -> RunConfig:
    env = {"name": "countdown"} | (env or {})
    return RunConfig.model_validate({"model": {"path": "x/y"}, "env": env, "sft": sft})


def steps(**sft: Any) -> int:
    return planned_sft_steps(config(**sft))


def test_steps_are_known_before_anything_is_read_as_tokens(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "response": "b"}\n' * 5)
    assert steps(data="traces") == 300
    assert steps(data="traces", steps=7) == steps(data=str(rows), steps=7) == 7
    assert steps(data=str(rows), epochs=2, batch_size=4) == 3  # 10 rows, the last 2 alone
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        steps(data=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("env", "data"), [("gsm8k", "traces"), ("countdown", "rows.jsonl")], ids=["no-search", "file"]
)
def test_giving_up_is_of_traces_that_search(tmp_path, monkeypatch, env, data):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    check_sft(config({"name": env}, data=data))
    with pytest.raises(ValueError, match=r"sft\.give_up_prob=0\.4 is of traces that search"):
        check_sft(config({"name": env}, data=data, give_up_prob=0.4))


def test_searches_are_of_three_or_four_numbers():
    with pytest.raises(ValueError, match=r"Countdown with 3 or 4 numbers: env=countdown env\.min_"):
        check_sft(config({"max_operands": 5}, data="traces"))
