"""`python -m rl_core.learner.own_check` tries a user's own estimator and policy loss on two rows.

Preflight starts it: code that has not been tried should not end the flow's process. Rows of 3 and 5
tokens show what a run would not: outside the mask is NaN, and the loss of both rows must be that of
each alone.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import Tensor

from rl_core.algos.advantages import GivenRewards
from rl_core.algos.losses import GivenTokens
from rl_core.config.own_algorithms import own_loss
from rl_core.system.child_process import channel_to_parent
from rl_core.system.named_code import load_function
from rl_core.system.sealed import die_with
from rl_core.system.words import cut, in_one_line

_LENGTHS: Final = (3, 5)
_MASK: Final = torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS).unsqueeze(-1)


class RefusedError(ValueError):
    """What is wrong with a result, as the end of a sentence that begins with the setting."""


def main() -> None:
    """Answers one question, `named` and `options` of the settings; its argument: the parent's pid.

    The answer is the `reason` why one of the functions cannot be used, else null.
    """
    channel = channel_to_parent()
    die_with(int(sys.argv[1]))
    question = channel.receive()
    own_pid = os.getpid()
    reason = None
    for key, name in question["named"].items():
        try:
            CHECKS[key](name, question["options"])
        except RefusedError as error:
            reason = f"{key}={name} {error}"
        except BaseException as error:  # noqa: BLE001  # even sys.exit in a user's module
            reason = f"{key}={name} {type(error).__name__}: {error}"
        if reason is not None:
            break
    if os.getpid() == own_pid:  # else the function forked, and this is the copy
        channel.send({"reason": reason and cut(in_one_line(reason), 400)})


def check_estimator(name: str, options: Mapping[str, Any]) -> None:
    """Raises an error that says why an estimator cannot be used."""
    rewards = torch.tensor([1.0, 0.0])
    at_end = torch.arange(max(_LENGTHS)) == torch.tensor(_LENGTHS).unsqueeze(-1) - 1
    given = GivenRewards(
        rewards=rewards,
        outcomes=rewards.clone(),
        correct=torch.tensor([True, False]),
        group_ids=torch.tensor([0, 0]),
        token_rewards=(rewards.unsqueeze(-1) * at_end).where(_MASK, torch.nan),
        mask=_MASK,
        values=None,
        old_logprobs=_tokens(0),
        extra_info=[{"index": 0, "num_solutions": 0}, {"index": 0, "num_solutions": 0}],
    )
    advantages = _called(load_function(name), given, options)
    _check_tensor(advantages, "advantages", [(len(_LENGTHS),), tuple(_MASK.shape)])
    if advantages.requires_grad:
        raise RefusedError("returns advantages with a gradient: they are constants, detach them")
    per_token = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    _check_finite(per_token.expand(_MASK.shape)[_MASK], "advantages")


def check_loss(name: str, options: Mapping[str, Any]) -> None:
    """Raises an error that says why a policy loss cannot be used."""
    both = GivenTokens(
        logprobs=_tokens(0).requires_grad_(),
        old_logprobs=_tokens(1),
        rollout_logprobs=_tokens(2),
        advantages=_tokens(3) + 1,
        mask=_MASK,
        ref_logprobs=_tokens(4),
    )

    def loss(given: GivenTokens, **options: Any) -> Tensor:
        result = own_loss(name, given, **options)
        _check_tensor(result.per_token, "a loss", [tuple(given.mask.shape)])
        return result.per_token

    whole = _called(loss, both, options)
    _check_finite(whole[_MASK], "a loss")
    if _leaves(whole) != {both.logprobs}:
        raise RefusedError("must have a gradient at given.logprobs, and nowhere else")
    (gradient,) = torch.autograd.grad(whole[_MASK].sum(), both.logprobs)
    _check_finite(gradient[_MASK], "a gradient")
    for row, length in enumerate(_LENGTHS):
        tensors = {field.name: getattr(both, field.name) for field in fields(both)}
        cut_out = {key: x[row : row + 1, :length] for key, x in tensors.items()}
        alone = loss(replace(both, **cut_out), **options)
        if not torch.allclose(alone[0], whole[row, :length], rtol=1e-4, atol=1e-6):
            raise RefusedError(
                "gives a row another loss when another row is in the batch: it depends on the "
                "micro-batch, so do it in the estimator"
            )


CHECKS: Final = {"algorithm.estimator": check_estimator, "actor.policy_loss": check_loss}
"""By the setting that names the function."""


def _tokens(seed: int) -> Tensor:
    """Returns log-probs under the mask, NaN elsewhere."""
    numbers = torch.rand(_MASK.shape, generator=torch.Generator().manual_seed(seed))
    return (-2 * numbers).where(_MASK, torch.nan)


def _called(function: Callable[..., Any], given: Any, options: Mapping[str, Any]) -> Any:
    """Returns what a function returns; refuses one that changes what it is given."""
    tensors = {name: x for name, x in vars(given).items() if isinstance(x, Tensor)}
    before = {name: x.detach().clone() for name, x in tensors.items()}
    result = function(given, **options)
    for name, x in tensors.items():
        if not torch.allclose(x, before[name], rtol=0, atol=0, equal_nan=True):
            raise RefusedError(f"changes given.{name}: work on a copy")
    return result


def _check_tensor(x: object, what: str, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(x, Tensor):
        raise RefusedError(f"returns {what} of type {type(x).__name__}, which must be a tensor")
    if tuple(x.shape) not in shapes:
        like = " or ".join(str(list(shape)) for shape in shapes)
        raise RefusedError(f"returns {what} of shape {list(x.shape)}, which must be {like}")
    if x.dtype != torch.float32:
        raise RefusedError(f"returns {what} of {x.dtype}, which must be torch.float32")


def _check_finite(x: Tensor, what: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise RefusedError(
            f"returns {what} that is not finite, from finite tokens: what is outside given.mask "
            "must not matter"
        )


def _leaves(x: Tensor) -> set[Tensor]:
    """Returns the tensors that a gradient would be added to."""
    leaves = set()
    to_do = [x.grad_fn]
    for node in to_do:
        if node is not None:
            leaves |= {node.variable} if hasattr(node, "variable") else set()
            to_do += [after for after, _ in node.next_functions if after not in to_do]
    return leaves


if __name__ == "__main__":
    main()
