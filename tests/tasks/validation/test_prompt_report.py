import polars as pl
import pytest

from tasks.validation import LengthReport, report_lengths

QWEN = [140] * 5 + [143] * 20 + [146] * 15
"""Lengths as Qwen2.5's tokenizer gives them."""


def report(lengths: list[int], limit: int) -> LengthReport:
    return report_lengths(pl.DataFrame({"prompt_tokens": lengths}), limit)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (128, "all 40 prompts are rejected by {}: they {}; {}"),
        (145, "15 of 40 prompts (37.5%) are rejected by {}: prompts {}; {}"),
        (146, "all 40 prompts fit into {}: they {}, which is the smallest limit that keeps all"),
        (256, "all 40 prompts fit into {}: they {}; {}, 110 fewer"),
        (1024, "all 40 prompts fit into {}: they {}; 86% of that room is never used: {}"),
    ],
)
def test_the_verdict_in_words(limit, verdict):
    least = "the smallest limit that keeps all is 146"
    setting = f"data.max_prompt_length={limit}"
    assert report(QWEN, limit).verdict == verdict.format(setting, "take 140 to 146 tokens", least)


def test_prompts_of_one_length_have_no_range():
    assert "they take 7 tokens" in report([7] * 4, 9).verdict


def test_candidate_limits_around_the_lengths_and_our_own():
    assert [
        (row["limit"], row["rejected"], row["share"], row["note"])
        for row in report(QWEN, 143).limits
    ] == [
        (128, 40, "100.0%", ""),
        (143, 15, "37.5%", "data.max_prompt_length"),
        (146, 0, "0.0%", "the smallest that keeps all"),
        (160, 0, "0.0%", ""),
    ]


def test_a_share_is_nought_only_if_it_is():
    few = report([100] * 9_999 + [200], 150)
    assert "1 of 10,000 prompts (<0.1%)" in few.verdict
    most = report([100] + [200] * 9_999, 150)
    assert "9,999 of 10,000 prompts (>99.9%)" in most.verdict
