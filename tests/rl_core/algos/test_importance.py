import math

import pytest
import torch

from rl_core.algos.importance import importance_weights, off_policy_kept

NAN = float("nan")
DIFFERENCES = {
    # log-ratios: product, geometric mean
    (0.02, -0.01, 0.03, 0.0): (1.040811, 1.010050),
    (0.4, 0.3, 0.5, 0.1): (3.669297, 1.384031),
    (-0.02, -0.01, -0.03, 0.0): (0.941765, 0.985112),
}
BANDS = {"low": 0.99, "cap": 1.01, "outside": "drop"}


def weights_of(differences: tuple[float, ...], **settings: object) -> list[float]:
    """Of one response, behind which there is padding."""
    old = torch.tensor([[*differences, NAN]])
    mask = torch.tensor([[*[True] * len(differences), False]])
    (weights,) = importance_weights(old, mask, **settings).tolist()
    assert weights[-1] == 0.0
    return weights[:-1]


def test_importance_weights_by_hand_are_capped_constants():
    old = torch.tensor([[math.log(0.5), math.log(0.9), NAN]], requires_grad=True)
    rollout = torch.tensor([[math.log(0.4), math.log(0.1), NAN]])
    mask = torch.tensor([[True, True, False]])
    weights = importance_weights(old - rollout, mask, cap=2.0)
    assert weights.tolist() == [[pytest.approx(1.25), 2.0, 0.0]]
    assert not weights.requires_grad
    same = importance_weights(torch.zeros_like(old), mask, cap=1.0)
    assert (same[mask] == 1).all()


@pytest.mark.parametrize(("differences", "ratios"), DIFFERENCES.items())
def test_a_response_has_one_ratio(differences, ratios):
    product, geometric = ratios
    sequence = weights_of(differences, level="sequence", cap=3.0, outside="drop")
    assert sequence == pytest.approx([product if product <= 3 else 0.0] * 4, abs=1e-6)
    clipped = weights_of(differences, level="sequence", cap=3.0)
    assert clipped == pytest.approx([min(product, 3.0)] * 4, abs=1e-6)
    decided = weights_of(differences, level="geometric", **BANDS)
    assert decided == [0.0] * 4  # each is outside of 0.99 to 1.01
    wide = weights_of(differences, level="geometric", low=0.5, cap=geometric, outside="drop")
    if geometric < 1.01:
        assert wide == pytest.approx([math.exp(x) for x in differences])


def test_the_geometric_mean_decides_and_tokens_weigh():
    kept = weights_of((0.5, -0.5, 1.0, -1.0), level="geometric", **BANDS)
    assert kept == pytest.approx([math.exp(0.5), math.exp(-0.5), 2.0, math.exp(-1.0)])


def test_a_token_outside_is_dropped():
    ratios = weights_of((0.0, -1.0, 1.0, 0.5), low=0.5, cap=2.0, outside="drop")
    assert ratios == pytest.approx([1.0, 0.0, 0.0, math.exp(0.5)])
    clipped = weights_of((0.0, -1.0, 1.0, 0.5), low=0.5, cap=2.0)
    assert clipped == pytest.approx([1.0, 0.5, 2.0, math.exp(0.5)])


def test_what_the_policy_has_left_is_not_pushed_down():
    rollout = torch.tensor([[0.5, 0.4, 0.8, NAN]]).log()
    current = torch.tensor([[0.25, 0.4, 0.4, NAN]]).log()
    mask = torch.tensor([[True, True, True, False]])
    mean = ((rollout - current)[mask].mean()).item()
    assert mean == pytest.approx(0.462098, abs=1e-6)
    for delta, advantage, kept in ((0.05, -1.0, 0.0), (0.05, 1.0, 1.0), (0.47, -1.0, 1.0)):
        advantages = torch.full((1, 4), advantage)
        result = off_policy_kept(current, rollout, advantages, mask, delta=delta)
        assert result.tolist() == [[kept, kept, kept, 0.0]]
