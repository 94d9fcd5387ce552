"""Tries a user's own estimator and policy loss on two rows, before a run starts.

`why_refused` starts `python -m rl_core.learner.own_check`, as the flow's process has no torch, and
code that has not been tried should not end it. Rows of 3 and 5 tokens show what a run would not:
outside the mask is NaN, and the loss of both rows must be that of each beside the other's.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from rl_core.algos.advantages import GivenRewards
from rl_core.algos.losses import GivenTokens
from rl_core.algos.own import own_loss
from rl_core.system.child_process import Child, channel_to_parent
from rl_core.system.named_code import load_function
from rl_core.system.sealed import die_with
from rl_core.system.words import cut, in_one_line

if TYPE_CHECKING:
    from torch import Tensor

_TIMEOUT_S: Final = 300.0
"""The user's module and torch are loaded first."""
_LENGTHS: Final = (3, 5)


def why_refused(named: Mapping[str, str], options: Mapping[str, Any]) -> str | None:
    """Returns in words why functions cannot be used; None if they can.

    `named` as `RunConfig.own_algorithms`, `options` are their keywords.
    """
    child = Child("rl_core.learner.own_check", os.getpid())
    try:
        child.send({"named": named, "options": options}, _TIMEOUT_S)
        reason: str | None = child.receive(_TIMEOUT_S).get("reason")
    except (OSError, EOFError, ValueError) as error:
        words = " ".join(f"{key}={name}" for key, name in named.items())
        reason = f"{words}: trying it ended its process, or took too long ({type(error).__name__})"
    finally:
        child.close()
    return reason


def main() -> None:
    """Answers one question of `why_refused`; its argument: the parent's pid."""
    channel = channel_to_parent()
    (parent,) = sys.argv[1:]
    die_with(int(parent))
    question = channel.receive()
    checks: dict[str, Callable[[str, dict[str, Any]], None]] = {
        "algorithm.estimator": check_estimator,
        "actor.policy_loss": check_loss,
    }
    reason = None
    for key, name in question["named"].items():
        try:
            checks[key](name, question["options"])
        except BaseException as error:  # noqa: BLE001  # even sys.exit in a user's module
            own = f"{error}" if type(error) is _RefusedError else f"{type(error).__name__}: {error}"
            reason = reason or cut(in_one_line(f"{key}={name} {own}"), 400)
    with suppress(OSError):
        channel.send({"reason": reason})


class _RefusedError(ValueError):
    """What is wrong with a result, as the end of a sentence that begins with the setting."""


def check_estimator(name: str, options: Mapping[str, Any]) -> None:
    """Raises an error that says why an estimator cannot be used."""
    import torch

    mask = torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS).unsqueeze(-1)
    rewards = torch.tensor([1.0, 0.0])
    at_end = torch.arange(max(_LENGTHS)) == torch.tensor(_LENGTHS).unsqueeze(-1) - 1
    given = GivenRewards(
        rewards=rewards,
        outcomes=rewards.clone(),
        correct=torch.tensor([True, False]),
        group_ids=torch.tensor([0, 0]),
        token_rewards=(rewards.unsqueeze(-1) * at_end).where(mask, torch.nan),
        mask=mask,
        values=None,
        old_logprobs=_tokens(mask, 0),
        extra_info=[{"index": 0, "num_solutions": 0}, {"index": 0, "num_solutions": 0}],
    )
    advantages = _called(load_function(name), given, options)
    _check_tensor(advantages, "advantages", [(len(_LENGTHS),), tuple(mask.shape)])
    if advantages.requires_grad:
        raise _RefusedError("returns advantages with a gradient: they are constants, detach them")
    per_token = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    _check_finite(per_token.expand(mask.shape)[mask], "advantages")


def check_loss(name: str, options: Mapping[str, Any]) -> None:
    """Raises an error that says why a policy loss cannot be used."""
    import torch

    mask = torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS).unsqueeze(-1)
    both = GivenTokens(
        logprobs=_tokens(mask, 0).requires_grad_(),
        old_logprobs=_tokens(mask, 1),
        rollout_logprobs=_tokens(mask, 2),
        advantages=_tokens(mask, 3) + 1,
        mask=mask,
        ref_logprobs=_tokens(mask, 4),
    )

    def loss(given: GivenTokens, options: Mapping[str, Any]) -> "Tensor":
        tokens = own_loss(name, given, **options)
        _check_tensor(tokens.per_token, "a loss", [tuple(given.mask.shape)])
        _check_tensor(tokens.is_clipped, "is_clipped", [tuple(given.mask.shape)], torch.bool)
        return tokens.per_token

    load_function(name)
    whole = _called(lambda given, **options: loss(given, options), both, options)
    _check_finite(whole[mask], "a loss")
    if _leaves(whole) != {id(both.logprobs)}:
        raise _RefusedError("must have a gradient at given.logprobs, and nowhere else")
    (gradient,) = torch.autograd.grad(whole[mask].sum(), both.logprobs)
    _check_finite(gradient[mask], "a gradient")
    for row, length in enumerate(_LENGTHS):
        alone = loss(_row(both, row, length), options)
        if not torch.allclose(alone[0], whole[row, :length], rtol=1e-4, atol=1e-6):
            raise _RefusedError(
                "gives a row another loss beside another row than alone: it depends on the "
                "micro-batch, so do it in the estimator"
            )


def _tokens(mask: "Tensor", seed: int) -> "Tensor":
    """Returns log-probs under the mask, NaN elsewhere."""
    import torch

    numbers = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
    return (-2 * numbers).where(mask, torch.nan)


def _row(given: GivenTokens, row: int, length: int) -> GivenTokens:
    """Returns one row, as a micro-batch holds it: without padding."""
    tensors = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(given, **{name: x[row : row + 1, :length] for name, x in tensors.items()})


def _called(function: Callable[..., Any], given: Any, options: Mapping[str, Any]) -> Any:
    """Returns what a function returns; refuses one that changes what it is given."""
    import torch

    tensors = {name: x for name, x in vars(given).items() if isinstance(x, torch.Tensor)}
    before = {name: x.detach().clone() for name, x in tensors.items()}
    result = function(given, **options)
    for name, x in tensors.items():
        if not torch.equal(x.nan_to_num(7.0), before[name].nan_to_num(7.0)):
            raise _RefusedError(f"changes given.{name}: work on a copy")
    return result


def _check_tensor(x: object, what: str, shapes: list[tuple[int, ...]], dtype: Any = None) -> None:
    import torch

    dtype = dtype or torch.float32
    if not isinstance(x, torch.Tensor):
        raise _RefusedError(f"returns {what} of type {type(x).__name__}, which must be a tensor")
    if tuple(x.shape) not in shapes:
        like = " or ".join(str(list(shape)) for shape in shapes)
        raise _RefusedError(f"returns {what} of shape {list(x.shape)}, which must be {like}")
    if x.dtype != dtype:
        raise _RefusedError(f"returns {what} of {x.dtype}, which must be {dtype}")


def _check_finite(x: "Tensor", what: str) -> None:
    import torch

    if not bool(torch.isfinite(x).all()):
        raise _RefusedError(
            f"returns {what} that is not finite, from finite tokens: what is outside given.mask "
            "must not matter"
        )


def _leaves(x: "Tensor") -> set[int]:
    """Returns the ids of the tensors that a gradient would be added to."""
    found, seen, to_do = set(), set(), [x.grad_fn]
    while to_do:
        node = to_do.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        to_do += [after for after, _ in node.next_functions]
    return found


if __name__ == "__main__":
    main()
