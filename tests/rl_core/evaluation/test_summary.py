from typing import Any

import pytest

from rl_core.evaluation.statistics import gain_interval, paired, wilson_interval
from rl_core.evaluation.summary import compare, summarise
from rl_core.schema import EVALUATION


def row(index: int, verdict: str, mode: str = "greedy", **changes: Any) -> dict[str, Any]:
    verdicts = dict.fromkeys(("verdict", "verdict_strict", "verdict_lenient"), verdict)
    own = {
        "model": "base",
        "step": 0,
        "prompt_index": index,
        "data_source": "countdown",
        "num_solutions": index,
        "mode": mode,
        "prompt": f"p{index}",
        "score": {"correct": 1.0, "no_answer": 0.0}.get(verdict, 0.1),
        "response_tokens": 10 * index,
        "num_operands": 3,
        "ground_truth": f"t{index}",
    }
    return dict.fromkeys(EVALUATION.names) | verdicts | own | changes


def test_a_summary_by_hand():
    greedy = [
        row(1, "correct", verdict_strict="no_answer"),
        row(2, "no_answer", num_operands=4),
        row(3, "bad_syntax"),
        row(4, "wrong_numbers", num_operands=4),
        row(5, "correct", num_operands=4),
        row(0, "too_long", verdict_lenient="correct"),
    ]
    sampled = [
        row(index, verdict, "sampled", response_tokens=999, sample_index=i, value=value)
        for index, samples in {
            1: [("correct", "6")] * 4,
            2: [("correct", "6"), ("no_answer", None), ("wrong_value", "7"), ("wrong_value", "7")],
        }.items()
        for i, (verdict, value) in enumerate(samples)
    ]
    summary = summarise(sampled + greedy)
    assert (summary.model, summary.step, summary.num_problems) == ("base", 0, 6)
    assert summary.accuracy.value == pytest.approx(2 / 6)
    assert (summary.accuracy.low, summary.accuracy.high) == wilson_interval(2, 6)
    assert summary.accuracy_strict.value == pytest.approx(1 / 6)
    assert summary.accuracy_lenient.value == pytest.approx(3 / 6)
    assert summary.score.value == pytest.approx((1 + 0 + 0.1 + 0.1 + 1 + 0.1) / 6)
    assert summary.format_share.value == pytest.approx(3 / 6)
    assert (summary.format_share.low, summary.format_share.high) == wilson_interval(3, 6)
    assert summary.response_tokens.value == pytest.approx(25.0)
    assert summary.response_tokens.low < 25 < summary.response_tokens.high
    shares = {k: estimate.value for k, estimate in summary.pass_at_k.items()}
    by_hand = {1: (1 + 0.25) / 2, 2: (1 + 0.5) / 2, 3: (1 + 0.75) / 2, 4: 1.0}
    assert shares == pytest.approx(by_hand)
    # (1 + 0.25) / 2 with variance 9/64: as many problems as 2 * (5/8 * 3/8) / (9/64) = 10/3
    ends = (summary.pass_at_k[1].low, summary.pass_at_k[1].high)
    assert ends == pytest.approx(wilson_interval(5 / 8 * 10 / 3, 10 / 3))
    # Of problem 2 one votes for the right value and two for 7: 0. Of problem 1 all do: 1.
    assert {k: e.value for k, e in summary.majority_at_k.items()} == {4: 0.5}
    assert [(g.label, g.num_problems, g.accuracy.value) for g in summary.by_num_operands] == [
        ("3 numbers", 3, pytest.approx(1 / 3)),
        ("4 numbers", 3, pytest.approx(1 / 3)),
    ]
    # 0 is unknown
    assert [(g.label, g.num_problems, g.accuracy.value) for g in summary.by_difficulty] == [
        ("1 solution", 1, 1.0),
        ("2-3 solutions", 2, 0.0),
        ("4-7 solutions", 2, 0.5),
    ]


def test_ranges_of_solutions_double():
    rows = [row(i, "correct", num_solutions=n) for i, n in enumerate([1, 1, 1, 1, 7, 8, 9, 31])]
    groups = [(g.label, g.num_problems) for g in summarise(rows).by_difficulty]
    assert groups == [
        ("1 solution", 4),
        ("4-7 solutions", 1),
        ("8-15 solutions", 2),
        ("16-31 solutions", 1),
    ]
    unknown = [row(i, "correct", num_solutions=0, num_operands=None) for i in range(3)]
    assert summarise(unknown).by_difficulty == summarise(unknown).by_num_operands == ()


def test_tasks_of_a_mixture_are_told_apart():
    rows = [row(i, "correct", data_source="legs") for i in range(2)] + [row(2, "no_answer")]
    summary = summarise(rows)
    assert [(g.label, g.num_problems, g.accuracy.value) for g in summary.by_data_source] == [
        ("countdown", 1, 0.0),
        ("legs", 2, 1.0),
    ]
    assert summary.groups[:2] == summary.by_data_source
    assert summarise(rows[:2]).by_data_source == ()


def test_k_stops_at_the_samples_that_every_problem_has():
    rows = [row(1, "correct"), *(row(index, "correct", "sampled") for index in (1, 2, 2))]
    assert list(summarise(rows).pass_at_k) == [1]
    assert dict(summarise(rows[:1]).pass_at_k) == {}
    with pytest.raises(ValueError, match="there are no evaluation rows"):
        summarise([])


def sampled(*counts: int, of: int = 4, **changes: Any) -> list[dict[str, Any]]:
    """Rows of problems of whose samples so many are correct."""
    return [
        row(i, "correct" if sample < right else "bad_syntax", "sampled", num_solutions=1, **changes)
        for i, right in enumerate(counts)
        for sample in range(of)
    ]


def test_without_greedy_rows_the_mean_of_the_samples_counts():
    summary = summarise(sampled(4, 3, 0, 1))
    assert (summary.num_problems, summary.num_samples) == (4, 4)
    assert (summary.decoding, summarise(solved(True)).decoding) == ("mean of 4 samples", "greedy")
    assert summary.accuracy == summary.accuracy_strict == summary.pass_at_k[1]
    # 1, 3/4, 0, 1/4: mean 1/2, variance 5/32, so 4 * (1/4) / (5/32) problems count.
    assert (summary.accuracy.low, summary.accuracy.high) == wilson_interval(3.2, 6.4)
    assert summary.format_share == summary.accuracy
    assert summary.score.value == pytest.approx((8 * 1 + 8 * 0.1) / 16)
    (group,) = summary.by_difficulty
    assert (group.num_problems, group.accuracy) == (4, summary.accuracy)


def test_means_are_compared_by_problem_and_only_with_means_of_the_same_evaluation():
    better = compare(sampled(4, 3, 3, 2, 1), sampled(2, 1, 1, 0, 2))
    gain = paired([4, 3, 3, 2, 1], [2, 1, 1, 0, 2], 4)
    assert (better.won, better.lost, better.p_value) == (4, 1, gain.p_value)
    assert better.gain == gain.gain
    assert better.against("X").endswith("4 problems won and 1 lost of 5, means of 4 samples)")
    one = sampled(1, 0, of=1, evaluation="hot")
    for other in (solved(True, False), sampled(1, 0), sampled(1, 0, of=1, evaluation="cold")):
        with pytest.raises(ValueError, match="asked in different ways, by other settings"):
            compare(one, other)


def solved(*outcomes: bool) -> list[dict[str, Any]]:
    return [row(i, "correct" if right else "wrong_value") for i, right in enumerate(outcomes)]


def test_models_are_compared_problem_by_problem():
    both, neither = [True] * 30, [False] * 20
    won, lost = [True] * 10 + [False] * 2, [False] * 10 + [True] * 2
    one, other = solved(*both, *neither, *won), solved(*both, *neither, *lost)
    better, worse = compare(one, list(reversed(other))), compare(other, one)
    assert (better.verdict, better.won, better.lost, better.num_problems) == ("better", 10, 2, 62)
    assert better.p_value == worse.p_value == pytest.approx(2 * 79 / 4096)
    assert worse.verdict == "worse"
    assert better.against("X") == ("better than X (p = 0.039, 10 problems won and 2 lost of 62)")
    assert str(worse) == "worse (p = 0.039, 2 problems won and 10 lost of 62)"
    assert (better.gain.low, better.gain.high) == gain_interval(10, 2, 62)
    assert (worse.gain.value, worse.gain.high) == pytest.approx((-8 / 62, -better.gain.low))
    same = compare(one, one)
    assert (same.verdict, same.p_value) == ("cannot tell", 1.0)
    assert same.against("X").startswith("cannot tell from X (p = 1,")
    five_to_none = compare(solved(*[True] * 5), solved(*[False] * 5))
    assert (five_to_none.verdict, five_to_none.p_value) == ("cannot tell", 2 / 32)


@pytest.mark.parametrize("change", [{"prompt": "other"}, {"ground_truth": "other"}])
def test_other_problems_are_not_compared(change):
    rows = solved(True, False)
    other = [rows[0], rows[1] | change]
    with pytest.raises(ValueError, match="not asked the same problems: 2 and 2, 2 of them"):
        compare(rows, other)
    with pytest.raises(ValueError, match="not asked the same problems: 2 and 1"):
        compare(rows, rows[:1])
    sampled = [row(9, "correct", "sampled", prompt="whatever")]
    assert compare(rows + sampled, rows).verdict == "cannot tell"
