"""A model with its AdamW and its learning-rate schedule: the unit that one update moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.config import LrSchedule

_DECAYS: dict[LrSchedule, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def lr_factor(step: int, *, schedule: LrSchedule, warmup_steps: int, num_steps: int) -> float:
    """Returns what the learning rate is multiplied by.

    Args:
        step: training step, from 0; past the last one a decay has ended at 0.
        schedule: how it falls after the warm-up.
        warmup_steps: first steps: step k of them has (k + 1) / warmup_steps.
        num_steps: at which a decay reaches 0, so the last step still learns.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    return _DECAYS[schedule](min(progress, 1.0))


class Optimized:
    """A model, its optimizer and its schedule.

    Args:
        model: all parameters that require gradient are optimized.
        lr: learning rate after the warm-up.
        schedule: what becomes of `lr` after the warm-up, see `lr_factor`.
        warmup_steps: training steps until `lr` is reached, linearly.
        num_steps: training steps in all.
        weight_decay: of AdamW, decoupled.
        grad_clip: largest norm of the whole gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        schedule: LrSchedule,
        warmup_steps: int,
        num_steps: int,
        weight_decay: float,
        grad_clip: float,
    ) -> None:
        self.model = model
        self._grad_clip = grad_clip
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=lr, weight_decay=weight_decay, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            partial(lr_factor, schedule=schedule, warmup_steps=warmup_steps, num_steps=num_steps),
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def update(self) -> Tensor:
        """Moves the weights along the gathered gradient, clears it, returns its norm, a scalar.

        A gradient that is not finite is thrown away: one bad micro-batch must not end a run.
        """
        norm = nn.utils.clip_grad_norm_(self.parameters, self._grad_clip, foreach=True)
        if torch.isfinite(norm):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def end_step(self) -> None:
        """Moves the schedule on by one training step, however many updates that had."""
        self._schedule.step()

    def state_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Returns the optimizer's state as `<prefix>.<parameter>.<field>`."""
        return {
            f"{prefix}.{name}.{field}": value
            for name, parameter in self.model.named_parameters()
            for field, value in self._optimizer.state.get(parameter, {}).items()
        }

    def weight_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Returns the weights that are optimized as `<prefix>.<parameter>`."""
        return {
            f"{prefix}.{name}": parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def restore_weights(self, prefix: str, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `weight_tensors` returned."""
        for name, weight in self.weight_tensors(prefix).items():
            weight.copy_(tensors[name])

    def moments_to_come(self, prefix: str) -> dict[str, Tensor]:
        """Returns, by the names of `state_tensors`, tensors like those that updates will make."""
        return {
            f"{prefix}.{name}.{field}": parameter.detach()
            for name, parameter in self.model.named_parameters()
            for field in ("exp_avg", "exp_avg_sq")
            if parameter.requires_grad
        }

    def schedule_state(self) -> dict[str, Any]:
        """Returns the schedule's state as plain numbers."""
        return dict(self._schedule.state_dict())

    def restore(
        self, prefix: str, tensors: Mapping[str, Tensor], schedule: Mapping[str, Any]
    ) -> None:
        """Puts back what `state_tensors` and `schedule_state` returned."""
        for name, parameter in self.model.named_parameters():
            start = f"{prefix}.{name}."
            state = {k.removeprefix(start): x for k, x in tensors.items() if k.startswith(start)}
            if state:
                self._optimizer.state[parameter] = {
                    field: x.to(parameter.device) for field, x in state.items()
                }
        self._schedule.load_state_dict(dict(schedule))
        for group, lr in zip(
            self._optimizer.param_groups, self._schedule.get_last_lr(), strict=True
        ):
            group["lr"] = lr
