"""Prompts byte for byte, the reward verdict by verdict, and TinyZero's scorer as the peer."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.templates import render_messages

TABLES = yaml.safe_load(Path(__file__).with_name("scoring.yaml").read_text())

BASE, QWEN = TABLES["prompts"]


def test_base_and_qwen_prompts_are_byte_exact():
    assert render_messages("base", [19, 36, 55, 7], 65) == [{"role": "user", "content": BASE}]
    assert render_messages("qwen-instruct", (19, 36, 55, 7), 65)[0]["content"] == QWEN


def test_chat_messages_hold_the_same_system_and_question():
    system, user = render_messages("chat", [19, 36, 55, 7], 65)
    assert (system["role"], user["role"]) == ("system", "user")
    assert f"<|im_start|>system\n{system['content']}<|im_end|>" in QWEN
    assert f"<|im_start|>user\n {user['content']}<|im_end|>" in QWEN


def score(response: str, numbers: Any = (2, 3, 4), target: int = 14, **options: Any) -> Any:
    return score_response(response, numbers, target, **options)


@pytest.mark.parametrize(("answer", "verdict", "value"), TABLES["verdicts"])
def test_verdicts(answer, verdict, value):
    scored = score(f"<think>so</think><answer>{answer}</answer>")
    assert (scored.verdict, scored.value) == (verdict, None if value is None else str(value))
    assert scored.score == (1.0 if verdict == "correct" else 0.1)
    assert scored.answer == answer.strip()


def test_division_by_zero_comes_after_wrong_numbers():
    response = "<answer>5 / (3 - 3)</answer>"
    assert score(response, [5, 3, 3], 5).verdict == "division_by_zero"
    assert score(response, [5, 3, 4], 5).verdict == "wrong_numbers"


@pytest.mark.parametrize("response", TABLES["no answer"])
def test_no_answer_scores_nothing(response):
    scored = score(response)
    assert (scored.score, scored.verdict) == (0.0, "no_answer")
    assert (scored.answer, scored.value) == (None, None)


@pytest.mark.parametrize(("response", "answer"), TABLES["anywhere"])
def test_anywhere_takes_the_last_closed_answer(response, answer):
    scored = score(response)
    assert (scored.verdict, scored.answer) == ("correct", answer)


@pytest.mark.parametrize(("response", "verdict"), TABLES["last line"])
def test_last_line_sees_only_the_last_line(response, verdict):
    assert score(response, answer_from="last_line").verdict == verdict


@given(st.text(alphabet="<answer>/\n1+", max_size=80))
def test_the_answer_is_what_a_slow_search_finds(response):
    """Oracle: of all (opening, closing) pairs, the last closing one and its nearest opening."""
    places = range(len(response))
    closings = [i for i in places if response.startswith("</answer>", i)] or [0]
    starts = [i + len("<answer>") for i in places if response.startswith("<answer>", i)]
    inner = [response[start : closings[-1]] for start in starts if start <= closings[-1]]
    assert score(response).answer == (inner[-1].strip() or None if inner else None)
