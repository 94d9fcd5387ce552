import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.evaluation.statistics import (
    bootstrap_intervals,
    chance,
    gain_interval,
    majority_credit,
    mcnemar_p,
    means,
    paired,
    pass_at_k,
    share,
    sign_flip_p,
    wilson_interval,
)


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5  # 1 - C(3,2)/C(4,2) = 1 - 3/6
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # 1 - C(3,3)/C(5,3) = 1 - 1/10
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(counts, data):
    num_samples, num_correct = counts
    k = data.draw(st.integers(1, num_samples))
    samples = [i < num_correct for i in range(num_samples)]
    subsets = [any(subset) for subset in itertools.combinations(samples, k)]
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=f"pass@{k} of {c} correct among {n} samples"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("num_correct", "wrong", "credit"),
    [
        (2, (1,), 1.0),
        (2, (2, 1), 1 / 2),
        (1, (1, 1, 1), 1 / 4),
        (1, (2,), 0.0),
        (1, (), 1.0),  # the silent ones leave the vote to it
        (0, (1, 2), 0.0),
        (0, (), 0.0),  # nobody votes
    ],
)
def test_the_vote_by_hand(num_correct, wrong, credit):
    assert majority_credit(num_correct, wrong) == credit


def test_wilson_intervals_by_hand():
    low, high = wilson_interval(0, 512)
    assert low == 0.0
    assert high == pytest.approx(3.841459 / (512 + 3.841459), rel=1e-6)  # z^2 / (n + z^2)
    assert wilson_interval(15, 50) == pytest.approx((0.19103, 0.43751), abs=1e-4)
    assert wilson_interval(512, 512)[1] == pytest.approx(1.0)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_are_where_the_share_is_just_at_the_edge_of_the_likely(counts):
    num_correct, num_total = counts
    share = num_correct / num_total
    for end in wilson_interval(num_correct, num_total):
        distance = 1.959963984540054 * math.sqrt(end * (1 - end) / num_total)
        assert abs(share - end) == pytest.approx(distance, abs=1e-7)


def test_the_bootstrap_resamples_whole_problems():
    """A slow loop over the same draws as oracle; columns of one problem stay together."""
    values = np.random.default_rng(0).normal(size=(7, 3))
    drawn = np.random.default_rng(5).integers(0, 7, (2_000, 7))
    resampled = [values[problems].mean(axis=0) for problems in drawn]
    expected = np.quantile(resampled, (0.025, 0.975), axis=0).T
    np.testing.assert_allclose(bootstrap_intervals(values, seed=5), expected)
    first, second, _ = means(np.stack([values[:, 0], values[:, 0], values[:, 1]], axis=1))
    assert first == second
    (constant,) = means([[0.5]])
    assert (constant.value, constant.low, constant.high) == (0.5, 0.5, 0.5)


def test_mcnemar_by_hand():
    # 2 * (C(12,0) + C(12,1) + C(12,2)) / 2^12 = 2 * 79 / 4096
    assert mcnemar_p(10, 2) == mcnemar_p(2, 10) == pytest.approx(0.0385742, abs=1e-7)
    assert mcnemar_p(0, 0) == mcnemar_p(1, 0) == mcnemar_p(4, 4) == 1.0
    assert mcnemar_p(6, 0) == 2 / 64
    assert mcnemar_p(2_000, 500) < 1e-200


@given(st.integers(0, 9), st.integers(0, 9))
def test_mcnemar_is_the_share_of_coin_tosses_at_least_as_uneven(won, lost):
    tosses = list(itertools.product((0, 1), repeat=min(won + lost, 12)))
    if won + lost > 12:
        return
    uneven = [abs(2 * sum(toss) - won - lost) >= abs(won - lost) for toss in tosses]
    assert mcnemar_p(won, lost) == pytest.approx(sum(uneven) / len(tosses))


def test_sign_flips_by_hand():
    # Of the 16 sums of +-2 +-2 +-2 +-1, 7, 5, -5 and -7 are at least as far from 0 as 5.
    assert sign_flip_p([2, 0, 2, 2, -1]) == 4 / 16
    assert sign_flip_p([]) == sign_flip_p([0, 0]) == sign_flip_p([3]) == sign_flip_p([1, -1]) == 1
    assert sign_flip_p([1] * 10 + [-1] * 2) == pytest.approx(mcnemar_p(10, 2), rel=1e-12)


@given(st.lists(st.integers(-3, 3), max_size=8))
def test_the_sign_flip_test_is_the_share_of_signs_at_least_as_far_from_0(differences):
    signs = list(itertools.product((-1, 1), repeat=len(differences)))
    sums = [sum(s * d for s, d in zip(sign, differences, strict=True)) for sign in signs]
    far = [abs(one) >= abs(sum(differences)) for one in sums]
    assert sign_flip_p(differences) == pytest.approx(sum(far) / len(far))


@pytest.mark.parametrize(
    ("correct", "others", "size", "won", "lost"),
    [
        # Differences 1, 1/2, 0, -1/2: mean 1/4, variance 5/16. Of pairs of samples 3/8 are won and
        # 1/8 lost: variance 1/2 - 1/16 = 7/16, so 4 problems count as 4 * (7/16) / (5/16) = 5.6.
        ([2, 2, 0, 0], [0, 1, 0, 1], 5.6, 3 / 8, 1 / 8),
        # 1/2, 0, 1/2, 1/2 vary less than two independent samples of each: at most 2 * 4 count.
        ([2, 1, 1, 2], [1, 1, 0, 1], 8, 7 / 16, 1 / 16),
        # Samples that are all alike tell no more than one.
        ([2, 2, 0, 0], [0, 0, 2, 0], 4, 2 / 4, 1 / 4),
        ([1, 1], [1, 1], 4, 1 / 4, 1 / 4),
    ],
)
def test_gains_of_means_by_hand(correct, others, size, won, lost):
    both = paired(correct, others, 2)
    assert both.gain.value == pytest.approx((sum(correct) - sum(others)) / 2 / len(correct))
    expected = gain_interval(won * size, lost * size, size)
    assert (both.gain.low, both.gain.high) == pytest.approx(expected)
    assert both.p_value == sign_flip_p(np.subtract(correct, others).tolist())
    back = paired(others, correct, 2)
    assert (back.won, back.lost, back.p_value) == (both.lost, both.won, both.p_value)
    assert (-back.gain.high, -back.gain.low) == pytest.approx((both.gain.low, both.gain.high))


@pytest.mark.parametrize("num_samples", [1, 4, 16])
def test_intervals_of_means_hold_the_truth_as_often_as_they_say(num_samples):
    """Problems differ as in practice, and a problem's chances under both models are alike."""
    rng = np.random.default_rng(0)
    many = rng.beta(0.5, 0.8, 200_000)
    moved = np.clip(many[:, None] + [0, 0.25, -0.1], 0, 1).mean(axis=1)
    truth, inside, alarms = float(np.mean(moved - many)), 0, 0
    for _ in range(400):
        before = rng.beta(0.5, 0.8, 80)
        after = np.clip(before + rng.choice([0, 0.25, -0.1], 80), 0, 1)
        a, b, c = (rng.binomial(num_samples, p).tolist() for p in (after, before, before))
        gain = paired(a, b, num_samples).gain
        inside += gain.low <= truth <= gain.high
        alarms += paired(c, b, num_samples).p_value < 0.05
    assert 0.93 < inside / 400 < 0.985
    assert alarms / 400 < 0.07


def test_paired_gains_of_the_books():
    """Fagerland, Lydersen, Laake 2014: Bentur 2009 (1, 7 of 21) and Cavo 2012 (6, 16 of 161)."""
    assert gain_interval(1, 7, 21) == pytest.approx((-0.5172, -0.0260), abs=1e-4)
    assert gain_interval(6, 16, 161) == pytest.approx((-0.1240, -0.0054), abs=1e-4)


def test_paired_gains_by_hand():
    assert gain_interval(14, 0, 50) == pytest.approx(wilson_interval(14, 50))  # none lost
    assert gain_interval(0, 14, 50) == pytest.approx(
        [-end for end in wilson_interval(14, 50)[::-1]]
    )
    z2 = 1.959963984540054**2  # few won, none lost: the low end is (won - z2) / (n + z2)
    assert gain_interval(5, 0, 50)[0] == pytest.approx((5 - z2) / (50 + z2))
    assert gain_interval(0, 0, 50) == pytest.approx((-z2 / (50 + z2), z2 / (50 + z2)))
    assert gain_interval(50, 0, 50)[1] == 1.0
    # won as often as lost: gain^2 = z2 (2q + gain - gain^2) / n, symmetric about 0
    low, high = gain_interval(6, 6, 40)
    assert low == pytest.approx(-high)
    # it leaves out 0 where McNemar's score (won - lost)^2 / (won + lost) is above z2
    assert gain_interval(12, 2, 50)[0] > 0
    assert gain_interval(7, 2, 50)[0] < 0


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_a_gain_lies_in_its_interval_and_is_the_other_way_round_for_the_other_model(
    won, lost, same
):
    if won + lost + same == 0:
        return
    low, high = gain_interval(won, lost, won + lost + same)
    assert -1 <= low <= (won - lost) / (won + lost + same) <= high <= 1
    assert gain_interval(lost, won, won + lost + same) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize(
    ("won", "lost", "problems"),
    [
        (0.587, 0.018, 512),  # quickstart's own result
        (0.30, 0.05, 512),
        (0.34, 0.01, 32),
        (0.02, 0.01, 512),
        (0.10, 0.10, 128),
        (0.686, 0.01, 512),
    ],
)
def test_95_of_100_intervals_hold_the_true_gain(won, lost, problems):
    draws = np.random.default_rng(0).multinomial(problems, [won, lost, 1 - won - lost], 20_000)
    counts, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    ends = [gain_interval(int(one), int(other), problems) for one, other in counts]
    covered = sum(
        t for (low, high), t in zip(ends, times, strict=True) if low <= won - lost <= high
    )
    assert 0.93 < covered / 20_000 < 0.97


def test_a_chance_is_a_share_if_every_problem_is_solved_always_or_never():
    assert chance([1.0] * 15 + [0.0] * 35, 8) == share(15, 50)
    assert chance([1.0] * 50, 8) == share(50, 50)
    assert chance([0.0] * 50, 8) == share(0, 50)
    # If all problems are alike, each sample tells as much as a problem.
    alike = chance([0.5] * 50, 8)
    assert (alike.low, alike.high) == pytest.approx(wilson_interval(200, 400))
    # 0 and 0.5 by halves: 0.25 with variance 1/16, a third of 0.25 * 0.75: as many as 3 * 10.
    half = chance([0.0, 0.5] * 5, 8)
    assert (half.low, half.high) == pytest.approx(wilson_interval(7.5, 30))


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (4, 1), (2, 6)])
def test_95_of_100_intervals_hold_the_true_chance(a, b):
    """4 samples each of 128 problems, which are unequally hard."""
    generator = np.random.default_rng(0)
    solved = generator.binomial(4, generator.beta(a, b, (4_000, 128))) / 4
    estimates = [chance(row, 4) for row in solved]
    covered = [one.low <= a / (a + b) <= one.high for one in estimates]
    assert 0.93 < np.mean(covered) < 0.97
