import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.evaluation.statistics import (
    bootstrap_intervals,
    majority_credit,
    mcnemar_p,
    means,
    pass_at_k,
    quartile_cuts,
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


def test_quartile_cuts_are_values_that_occur():
    assert quartile_cuts([1, 2, 3, 4, 5, 6, 7, 8]) == (2, 4, 6)
    assert quartile_cuts([1, 1, 1, 1, 1, 9]) == (1, 1, 1)
    assert quartile_cuts([7]) == (7, 7, 7)
