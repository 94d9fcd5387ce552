"""Estimators and losses as users write them: right ones, and each of their mistakes."""

import os

import torch
from torch import Tensor

from rl_core.algos.advantages import GivenRewards
from rl_core.algos.losses import GivenTokens, TokenLoss

_WEIGHT = torch.ones((), requires_grad=True)


def by_token(given: GivenRewards) -> Tensor:
    return torch.where(given.mask, given.rewards.unsqueeze(-1), 0.0)


def by_info(given: GivenRewards, *, key: str) -> Tensor:
    return torch.tensor([float(info[key]) for info in given.extra_info])


def scaled(given: GivenRewards, *, scale: float = 1.0) -> Tensor:
    return scale * given.rewards


def in_float64(given: GivenRewards) -> Tensor:
    return given.rewards.double()


def transposed(given: GivenRewards) -> Tensor:
    return by_token(given).T


def over_padding(given: GivenRewards) -> Tensor:
    return given.token_rewards.mean(dim=-1)


def with_gradient(given: GivenRewards) -> Tensor:
    return given.rewards * _WEIGHT


def in_place(given: GivenRewards) -> Tensor:
    return given.rewards.sub_(1.0)


def a_number(given: GivenRewards) -> float:
    return 1.0


def ends_the_process(given: GivenRewards) -> Tensor:
    raise SystemExit(3)


def kills_the_process(given: GivenRewards) -> Tensor:
    os._exit(0)


def reinforce(given: GivenTokens) -> Tensor:
    return -given.advantages * given.logprobs


def clipped(given: GivenTokens, *, most: float = 2.0) -> TokenLoss:
    ratio = (given.logprobs - given.old_logprobs).exp()
    return TokenLoss(-given.advantages * ratio.clamp(max=most), is_clipped=ratio > most)


def a_scalar(given: GivenTokens) -> Tensor:
    return reinforce(given)[given.mask].mean()


def of_the_micro_batch(given: GivenTokens) -> Tensor:
    kept = torch.where(given.mask, given.advantages, 0.0)
    return -(given.advantages - kept.sum() / given.mask.sum()) * given.logprobs


def detached(given: GivenTokens) -> Tensor:
    return reinforce(given).detach()


def of_a_weight(given: GivenTokens) -> Tensor:
    return reinforce(given) * _WEIGHT


def mean_over_padding(given: GivenTokens) -> Tensor:
    return reinforce(given) - given.logprobs.mean(dim=-1, keepdim=True)


def in_half(given: GivenTokens) -> Tensor:
    return reinforce(given).half()
