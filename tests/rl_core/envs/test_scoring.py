"""One scorer for every env, and what importing it loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rl_core.config import CountdownConfig, Gsm8kConfig
from rl_core.envs.scoring import score
from rl_core.types import ScoredText

TRUTH = {"target": 14, "numbers": [2, 3, 4]}


def test_countdown_options_come_from_the_settings() -> None:
    env = CountdownConfig(answer_from="last_line", format_score=0.2, full_score=2.0)
    right = "<answer> 2 + 3 * 4 </answer>"
    assert score(env, right, TRUTH) == ScoredText(2.0, "correct", "2 + 3 * 4")
    assert score(env, right + "\n", TRUTH) == ScoredText(0.0, "no_answer", None)
    assert score(env, "<answer>2</answer>", TRUTH) == ScoredText(0.2, "wrong_numbers", "2")


def test_gsm8k_options_come_from_the_settings() -> None:
    lenient = Gsm8kConfig(answer_from="lenient", format_score=0.1, full_score=3.0)
    assert score(lenient, "so 18", "18") == ScoredText(3.0, "correct", "18")
    assert score(lenient, "so 17", "18") == ScoredText(0.1, "wrong_value", "17")
    assert score(Gsm8kConfig(), "so 18", "18") == ScoredText(0.0, "no_answer", None)


@pytest.mark.parametrize("module", ["scoring", "countdown", "gsm8k", "puzzles", "solver"])
def test_envs_load_no_heavy_library(module: str) -> None:
    code = (
        f"import json, sys, rl_core.envs.{module}; "
        "print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert not loaded & {"torch", "transformers", "vllm", "ray", "prefect", "duckdb", "pyarrow"}
