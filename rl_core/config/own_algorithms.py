"""An estimator or a policy loss of the user's, in the place of a function of ours.

`algorithm.estimator=module:function` and `actor.policy_loss=module:function` name them, and
`algorithm.options` are their keywords. The module is loaded when the learner first needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_core.algos.advantages import GivenRewards
from rl_core.algos.losses import GivenTokens, TokenLoss
from rl_core.system.named_code import load_function

if TYPE_CHECKING:
    from torch import Tensor


def own_advantages(name: str, given: GivenRewards, *, options: Mapping[str, Any]) -> Tensor:
    """Returns what the user's estimator returns, [B, T]; of [B] each token gets the response's."""
    advantages: Tensor = load_function(name)(given, **options)
    per_token = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    return per_token.to(given.mask.device).where(given.mask, 0.0)


def own_loss(name: str, given: GivenTokens, **options: Any) -> TokenLoss:
    """Returns what the user's policy loss returns; of a plain tensor [b, T] no token is clipped."""
    loss = load_function(name)(given, **options)
    if isinstance(loss, TokenLoss):
        return loss
    return TokenLoss(loss, is_clipped=given.mask.new_zeros(given.mask.shape))
