"""A model with its AdamW and its learning-rate schedule: the unit that one update steps."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.config.algorithm import ActorConfig, CriticConfig, LrSchedule, OptimizerName
from rl_core.config.run import RunConfig
from rl_core.learner.adamw_8bit import (
    CONSTANTS,
    fresh_state,
    make_adamw_8bit,
    moments_like,
    restored_state,
    shape_when_cut,
    step_without_numbers,
)
from rl_core.models.loading import Models
from rl_core.models.shares import as_shares, cut_as, own_part, own_share, whole_tensor

_DECAYS: dict[LrSchedule, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
_MOMENTS = ("exp_avg", "exp_avg_sq")


def lr_factor(step: int, *, schedule: LrSchedule, warmup_steps: int, num_steps: int) -> float:
    """Returns the factor of the learning rate in a training step, counted from 0.

    Step k of the warm-up has (k + 1) / warmup_steps. A decay reaches 0 at `num_steps` and stays
    there, so the last step still learns.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(num_steps - warmup_steps, 1)
    return _DECAYS[schedule](min(progress, 1.0))


def _step_tensor(step: Tensor | int) -> Tensor:
    """Returns the steps as a tensor: AdamW counts in a tensor, bitsandbytes in a number."""
    return step if isinstance(step, Tensor) else torch.tensor(step, device="cpu")


class ModelOptimizer:
    """AdamW on a model, with its learning-rate schedule; of a sharded model, on this rank's share.

    All parameters that require gradient are optimized. For the rate see `lr_factor`, for the `kind`
    the setting `actor.optimizer`. Between two steps AdamW's moments are on `offload_to`,
    by default next to the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ActorConfig | CriticConfig,
        *,
        warmup_steps: int,
        num_steps: int,
        kind: OptimizerName = "adamw",
        offload_to: torch.device | None = None,
    ) -> None:
        self.model = model
        self._is_8bit = kind == "adamw_8bit"
        self._grad_clip = settings.grad_clip
        self._lr = settings.lr
        self._offload_to = offload_to
        self._shares = {parameter: own_share(parameter) for parameter in self.parameters}
        """What the optimizer updates: of a sharded parameter, this rank's part."""
        shares = list(self._shares.values())
        self._optimizer: torch.optim.Optimizer = (
            make_adamw_8bit(shares, lr=self._lr, weight_decay=settings.weight_decay)
            if self._is_8bit
            else torch.optim.AdamW(
                shares, lr=self._lr, weight_decay=settings.weight_decay, fused=True
            )
        )
        self._factor = partial(
            lr_factor,
            schedule=settings.lr_schedule,
            warmup_steps=warmup_steps,
            num_steps=num_steps,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._factor)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters as the model has them now; sharded ones are whole in a pass."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def is_fused(self) -> bool:
        """Whether one kernel updates all weights; with 8 bits there is no such kernel."""
        return bool(self._optimizer.defaults.get("fused"))

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return float(self._optimizer.param_groups[0]["lr"])

    def clip(self) -> Tensor:
        """Clips the summed gradient; returns its norm before that, a scalar. No weight moves yet.

        All memory that `step` needs is allocated here: if it does not fit, passes can run again.
        """
        self._make_moments()
        if self._offload_to is not None:
            self._bring_moments(self.parameters[0].device)
        parameters = self.parameters
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = whole_tensor(nn.utils.get_total_norm(gradients, foreach=True))
        nn.utils.clip_grads_with_norm_(parameters, self._grad_clip, norm, foreach=True)
        return norm

    def step(self, norm: Tensor) -> None:
        """Moves the weights along the clipped gradient and clears it; `norm` is from `clip`.

        A gradient that is not finite is thrown away: one bad micro-batch must not end a run.
        """
        if math.isfinite(norm.item()):
            for parameter, share in self._shares.items():
                share.grad = None if parameter.grad is None else own_part(parameter.grad)
            if self._is_8bit:
                step_without_numbers(self._optimizer)
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._shares:
            parameter.grad = None
        self.offload()

    def offload(self) -> None:
        """Moves the moments to `offload_to`, if given: passes get the device's memory."""
        if self._offload_to is not None:
            self._bring_moments(self._offload_to)

    def _bring_moments(self, device: torch.device) -> None:
        for state in self._optimizer.state.values():
            for field in state.keys() - {"step", *CONSTANTS}:
                state[field] = state[field].to(device)

    def _make_moments(self) -> None:
        """Makes AdamW's state as its first step would: all of it, or nothing."""
        state = self._optimizer.state
        made: dict[Tensor, dict[str, Any]] = {
            share: self._fresh_state(parameter)
            for parameter, share in self._shares.items()
            if parameter.grad is not None and not state.get(share)
        }
        state.update(made)

    def _fresh_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        share = self._shares[parameter]
        if self._is_8bit:
            return fresh_state(self._optimizer, share, parameter)
        return {
            "step": torch.zeros((), device=share.device),
            "exp_avg": torch.zeros_like(share),
            "exp_avg_sq": torch.zeros_like(share),
        }

    def end_step(self) -> None:
        """Moves the schedule on by one training step, however many updates that had."""
        with warnings.catch_warnings(action="ignore"):  # torch counts updates: there may be none
            self._schedule.step()

    def state_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Returns the optimizer's state as `<prefix>.<parameter>.<field>`."""
        return {
            f"{prefix}.{name}.{field}": (
                _step_tensor(value)
                if field == "step"
                else as_shares(value, parameter, shape_when_cut(field, parameter))
            )
            for name, parameter in self.model.named_parameters()
            if parameter in self._shares
            for field, value in self._optimizer.state.get(self._shares[parameter], {}).items()
            if field not in CONSTANTS
        }

    def weight_tensors(self) -> dict[str, Tensor]:
        """Returns the weights that are optimized, by the parameters' names."""
        return {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def moments_to_come(self, prefix: str) -> dict[str, Tensor]:
        """Returns, by the names of `state_tensors`, tensors like those that updates will make."""
        return {
            f"{prefix}.{name}.{field}": moment
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
            for field, moment in (
                moments_like(parameter)
                if self._is_8bit
                else dict.fromkeys(_MOMENTS, parameter.detach())
            ).items()
        }

    def schedule_state(self) -> dict[str, Any]:
        """Returns the schedule's state as plain numbers."""
        return dict(self._schedule.state_dict())

    def restore(
        self, prefix: str, tensors: Mapping[str, Tensor], schedule: Mapping[str, Any]
    ) -> None:
        """Restores what `state_tensors` and `schedule_state` returned.

        Of the schedule only its position: the rate and its decay come from the current settings.
        """
        for name, parameter in self.model.named_parameters():
            start = f"{prefix}.{name}."
            state = {k.removeprefix(start): x for k, x in tensors.items() if k.startswith(start)}
            if state:
                self._optimizer.state[self._shares[parameter]] = self._restored(parameter, state)
        self.offload()
        self._schedule.load_state_dict({**schedule, "base_lrs": self._schedule.base_lrs})
        lr = self._lr * self._factor(self._schedule.last_epoch)
        self._schedule._last_lr = [lr]
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def _restored(self, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> dict[str, Any]:
        share = self._shares[parameter]
        if self._is_8bit:
            return restored_state(self._optimizer, share, parameter, saved)
        return {
            field: own_part(cut_as(parameter, x)) if field in _MOMENTS else x.to(share.device)
            for field, x in saved.items()
        }


def make_optimizers(
    config: RunConfig, models: Models, offload_to: torch.device | None = None
) -> dict[str, ModelOptimizer]:
    """Returns the optimizers by model: the actor's, and the critic's if there is one."""
    # Only decays need it, and the settings demand it for them.
    num_steps = config.trainer.total_steps or 0
    make = partial(ModelOptimizer, kind=config.actor.optimizer, offload_to=offload_to)
    actor = config.actor
    critic = config.critic
    if models.critic is None:
        warmup_steps = actor.warmup_steps
        return {"actor": make(models.actor, actor, warmup_steps=warmup_steps, num_steps=num_steps)}
    return {
        "actor": make(
            models.actor,
            actor,
            warmup_steps=actor.warmup_steps,
            num_steps=num_steps - critic.warmup_steps,
        ),
        "critic": make(models.critic, critic, warmup_steps=0, num_steps=num_steps),
    }


def offload_device(config: RunConfig, device: torch.device) -> torch.device | None:
    """Returns where reference and optimizer state are kept between uses; None: not moved."""
    return torch.device("cpu") if config.resources.offload and device.type == "cuda" else None


@contextmanager
def side_by_side(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Allocates the weights' gradients as one block of memory, to which backward passes add.

    A pass that allocates them one by one puts them between activations, and glibc's heap keeps the
    holes that freed activations leave. A weight to which nothing was added has none at the end.
    """
    sizes = [parameter.numel() for parameter in parameters]
    together = torch.zeros(sum(sizes), device=parameters[0].device)
    added: set[Tensor] = set()
    hooks = []
    for parameter, part in zip(parameters, torch.split(together, sizes), strict=True):
        parameter.grad = part.view_as(parameter)
        hooks.append(parameter.register_post_accumulate_grad_hook(added.add))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    try:
        yield
    finally:
        for parameter, hook in zip(parameters, hooks, strict=True):
            hook.remove()
            if parameter not in added:
                parameter.grad = None


@contextmanager
def on_device(model: nn.Module, device: torch.device, offload_to: torch.device) -> Iterator[None]:
    """Moves a whole model to `device` for the block, and to `offload_to` after it."""
    model.to(device)
    try:
        yield
    finally:
        model.to(offload_to)
