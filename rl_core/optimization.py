"""A model with its AdamW and its learning-rate schedule: the unit that one update moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Optimized:
    """A model, its optimizer and its schedule (constant after a linear warm-up).

    Args:
        model: all parameters that require gradient are optimized.
        lr: learning rate after the warm-up.
        warmup_steps: training steps until `lr` is reached: step k of them runs at k / warmup_steps.
        weight_decay: of AdamW, decoupled.
        grad_clip: largest norm of the whole gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        warmup_steps: int,
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
            self._optimizer, lambda step: min(1.0, (step + 1) / max(warmup_steps, 1))
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
