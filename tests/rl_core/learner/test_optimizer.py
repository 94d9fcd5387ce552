from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_core.config.algorithm import CriticConfig
from rl_core.learner.optimizer import ModelOptimizer, side_by_side


def make(**changes: Any) -> tuple[nn.Linear, ModelOptimizer]:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    steps = {"warmup_steps": 0, "num_steps": 100}
    own = {name: changes.pop(name) for name in changes.keys() & {*steps, "offload_to"}}
    settings = CriticConfig.model_validate({"lr": 0.1, "grad_clip": 100.0} | changes)
    return model, ModelOptimizer(model, settings, **(steps | own))


def set_grad(model: nn.Linear, values: list[float]) -> None:
    model.weight.grad = torch.tensor([values])


def update(optimizer: ModelOptimizer) -> Tensor:
    norm = optimizer.clip()
    optimizer.step(norm)
    return norm


def test_first_update_by_hand():
    # AdamW's first step moves each weight by lr against the gradient's sign, after decay lr * wd.
    model, optimizer = make(weight_decay=0.5)
    set_grad(model, [3.0, -4.0])
    assert update(optimizer).item() == pytest.approx(5.0)
    expected = [1.0 * 0.95 - 0.1, -2.0 * 0.95 + 0.1]
    assert model.weight[0].tolist() == pytest.approx(expected)
    assert model.weight.grad is None
    assert optimizer.is_fused


def test_the_gradient_is_clipped_and_its_norm_before_that_returned():
    model, optimizer = make(grad_clip=1.0)
    set_grad(model, [3.0, -4.0])
    assert update(optimizer).item() == pytest.approx(5.0)
    moments = optimizer.state_tensors("x")["x.weight.exp_avg"]
    assert moments[0].tolist() == pytest.approx([0.06, -0.08])  # (1 - beta1) of the unit vector


def test_a_gradient_that_is_not_finite_is_thrown_away():
    model, optimizer = make()
    before = model.weight.detach().clone()
    set_grad(model, [float("inf"), 1.0])
    assert not torch.isfinite(update(optimizer))
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    set_grad(model, [1.0, 1.0])
    update(optimizer)
    assert torch.isfinite(model.weight).all()
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]),
        ("linear", [0.4, 0.8, 0.8, 0.6, 0.4, 0.2, 0.0]),
        # cos(0), cos(pi / 4), cos(pi / 2), ...
        ("cosine", [0.4, 0.8, 0.8, 0.4 + 0.4 * 0.5**0.5, 0.4, 0.4 - 0.4 * 0.5**0.5, 0.0]),
    ],
)
def test_after_a_linear_warm_up_the_rate_falls_to_0_at_the_end(schedule, expected):
    model, optimizer = make(lr=0.8, lr_schedule=schedule, warmup_steps=2, num_steps=6)
    rates = []
    for _ in expected:
        rates.append(optimizer.lr)
        set_grad(model, [1.0, 1.0])
        update(optimizer)
        optimizer.end_step()
    assert rates == pytest.approx(expected, abs=1e-12)
    assert optimizer.lr == pytest.approx(expected[-1])
    assert make(lr=0.8, lr_schedule=schedule)[1].lr == 0.8


def test_moments_are_beside_the_weights_only_while_these_move():
    model, optimizer = make(offload_to=torch.device("meta"))
    set_grad(model, [3.0, -4.0])
    optimizer.step(optimizer.clip())

    tensors = optimizer.state_tensors("actor").items()
    assert {x.device.type for name, x in tensors if not name.endswith(".step")} == {"meta"}


def test_gradients_side_by_side_add_up_and_what_nothing_was_added_to_has_none():
    one, unused, two = (nn.Parameter(torch.full((n,), float(n))) for n in (3, 4, 2))
    weights = [one, unused, two]
    for _ in range(2):  # the second begins anew
        with side_by_side(weights):
            for scale in (1.0, 10.0):
                (scale * (one.sum() + 2 * two.square().sum())).backward()
        assert one.grad is not None
        assert two.grad is not None
        assert unused.grad is None
        assert one.grad.tolist() == [11.0] * 3
        assert two.grad.tolist() == [88.0] * 2  # 4 * 2 * 11
        assert two.grad.data_ptr() == one.grad.data_ptr() + 4 * (3 + 4)
