"""What preflight says of estimators and losses of the user's; those are in tests/support."""

import pytest

from rl_core.learner.own_check import check_estimator, check_loss

HERE = "tests.support.own_algorithms"
ESTIMATORS = {
    "in_float64": "returns advantages of torch.float64, which must be torch.float32",
    "transposed": r"of shape \[5, 2\], which must be \[2\] or \[2, 5\]",
    "over_padding": "advantages that is not finite",
    "with_gradient": "with a gradient: they are constants",
    "in_place": "changes given.rewards: work on a copy",
    "a_number": "of type float, which must be a tensor",
    "by_info": "missing 1 required keyword-only argument: 'key'",
}
LOSSES = {
    "a_scalar": r"returns a loss of shape \[\], which must be \[2, 5\]",
    "of_the_micro_batch": "depends on the micro-batch, so do it in the estimator",
    "detached": "must have a gradient at given.logprobs",
    "of_a_weight": "and nowhere else",
    "mean_over_padding": "a loss that is not finite",
    "in_half": "of torch.float16, which must be torch.float32",
}


@pytest.mark.parametrize(("name", "why"), ESTIMATORS.items())
def test_an_estimator_that_would_spoil_a_run_is_refused(name, why):
    with pytest.raises((ValueError, TypeError), match=why):
        check_estimator(f"{HERE}:{name}", {})


@pytest.mark.parametrize(("name", "why"), LOSSES.items())
def test_a_loss_that_would_spoil_a_run_is_refused(name, why):
    with pytest.raises(ValueError, match=why):
        check_loss(f"{HERE}:{name}", {})


def test_sound_ones_pass():
    check_estimator(f"{HERE}:by_token", {})
    check_estimator(f"{HERE}:by_info", {"key": "index"})
    for name in ("reinforce", "clipped"):
        check_loss(f"{HERE}:{name}", {})
