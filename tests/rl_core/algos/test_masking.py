from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_core.algos.masking import (
    Aggregation,
    Denominators,
    aggregate,
    count_denominators,
    masked_mean,
    masked_sum,
    whiten,
)

NAN = float("nan")
MASK = torch.tensor([[True, True, False], [True, False, False]])
VALUES = torch.tensor([[1.0, 3.0, NAN], [8.0, NAN, NAN]])


def test_sums_means_and_gradients_ignore_what_is_masked():
    assert masked_sum(VALUES, MASK).item() == 12.0
    assert masked_sum(VALUES, MASK, dim=-1).tolist() == [4.0, 8.0]
    assert masked_mean(VALUES, MASK).item() == 4.0
    assert masked_mean(VALUES, torch.zeros_like(MASK)).item() == 0.0
    values = VALUES.clone().requires_grad_()
    masked_mean(values, MASK).backward()
    expected = torch.tensor([[1 / 3, 1 / 3, 0.0], [1 / 3, 0.0, 0.0]])
    torch.testing.assert_close(values.grad, expected)


def test_whiten_by_hand():
    # Mean 4; deviations -3, -1, 4; Bessel-corrected variance (9 + 1 + 16) / 2 = 13.
    expected = torch.tensor([[-3.0, -1.0, 0.0], [4.0, 0.0, 0.0]]) / 13**0.5
    torch.testing.assert_close(whiten(VALUES, MASK), expected)


def test_whiten_of_one_value_or_of_equal_values_is_zero():
    one = torch.tensor([[True, False]])
    assert whiten(torch.tensor([[5.0, 1.0]]), one).tolist() == [[0.0, 0.0]]
    assert whiten(torch.full((2, 3), 7.0), MASK).abs().max().item() == 0.0


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=30), st.floats(0.1, 10))
def test_whitened_values_have_mean_0_and_variance_1_and_forget_scale(numbers, scale):
    values = torch.tensor([numbers], dtype=torch.float64)
    mask = torch.ones_like(values, dtype=torch.bool)
    if values.var() < 1e-2:
        return
    whitened = whiten(values, mask)
    assert abs(whitened.mean().item()) < 1e-9
    assert whitened.var().item() == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(whiten(values * scale + 3.0, mask), whitened, atol=1e-4, rtol=1e-4)


def test_denominators_count_tokens_and_responses_with_tokens_of_which_there_must_be_some():
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, False]])
    assert count_denominators(mask) == Denominators(num_tokens=3, num_sequences=2)
    with pytest.raises(ValueError, match="no response token"):
        count_denominators(torch.zeros(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 12 / 3),
        ("seq-mean-token-sum", (4 + 8) / 2),
        ("seq-mean-token-mean", (2 + 8) / 2),
        ("seq-mean-token-sum-norm", (4 + 8) / 2 / 8),
    ],
)
def test_aggregations_by_hand(aggregation, expected):
    result = aggregate(VALUES, MASK, aggregation, count_denominators(MASK, max_response_length=8))
    assert result.item() == expected


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_shares_of_single_rows_add_up(aggregation):
    denominators = count_denominators(MASK, max_response_length=8)
    whole = aggregate(VALUES, MASK, aggregation, denominators)
    rows = zip(VALUES.split(1), MASK.split(1), strict=True)
    shares = [aggregate(values, mask, aggregation, denominators) for values, mask in rows]
    torch.testing.assert_close(sum(shares), whole)
