"""The forward pass over a batch: log-probs (and entropy) of an actor, or values of a critic.

Weights are float32; with `compute_dtype=bfloat16` the pass runs under autocast, except the value
head. Legend: B rows, T response tokens, M all sampled tokens of a batch, H hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn

from rl_core.batch import TrainBatch
from rl_core.models.full_kl import full_reverse_kl
from rl_core.models.loading import Critic
from rl_core.models.logprobs import Head, token_logprobs, token_logprobs_and_entropy
from rl_core.models.packing import select_rows
from rl_core.models.shared_prefix import response_states


@dataclass(frozen=True)
class TokenOutputs:
    """A model's outputs at the sampled tokens, each float32 [B, T], 0 at all others.

    Those that were not asked for are None.
    """

    logprobs: Tensor | None = None
    """Of the tokens under the tempered policy."""
    entropy: Tensor | None = None
    """Of that policy before each token, in nats."""
    values: Tensor | None = None
    """Of the state before each token."""
    states: Tensor | None = None
    """The states before each token, [B, T, H] in the type of the pass."""
    teacher_kl: Tensor | None = None
    """From that policy to its teacher's, over the whole vocabulary, in nats."""

    @property
    def per_token(self) -> Tensor:
        """The log-probs of an actor, or the values of a critic."""
        one = self.values if self.logprobs is None else self.logprobs
        assert one is not None, "a pass of no model"
        return one


ForwardPass = Callable[..., TokenOutputs]
"""`forward_pass`, with a run's temperature and type filled in."""


def forward_pass(
    batch: TrainBatch,
    *,
    actor: transformers.PreTrainedModel | None = None,
    critic: Critic | None = None,
    with_entropy: bool = False,
    with_states: bool = False,
    teacher: tuple[Tensor, Head] | None = None,
    temperature: float = 1.0,
    compute_dtype: torch.dtype,
) -> TokenOutputs:
    """Reads a batch once; returns log-probs (and entropy) of an actor, or values of a critic.

    `teacher` has its `states` and its head, for the KL to it. `temperature` is that of
    sampling; `compute_dtype` is float32, or bfloat16 for autocast.
    """
    mask = batch.sampled_mask
    if actor is None:
        assert critic is not None, "a pass of no model"
        hidden = sampled_states(critic.backbone, batch, compute_dtype=compute_dtype)
        return TokenOutputs(values=_padded(critic.head(hidden.float()).squeeze(-1), mask))
    assert critic is None, "one pass of two models"
    hidden = sampled_states(actor.get_decoder(), batch, compute_dtype=compute_dtype)
    head = Head.of(actor)
    targets = batch.sampled_ids()
    if not with_entropy:
        logprobs = token_logprobs(
            hidden, head, targets, temperature=temperature, compute_dtype=compute_dtype
        )
        states = _padded(hidden.to(compute_dtype), mask) if with_states else None
        return TokenOutputs(_padded(logprobs, mask), states=states)
    logprobs, entropy = token_logprobs_and_entropy(
        hidden, head, targets, temperature=temperature, compute_dtype=compute_dtype
    )
    kl = None
    if teacher is not None:
        states, teacher_head = teacher
        per_token = full_reverse_kl(
            hidden,
            head,
            (states[mask], teacher_head),
            temperature=temperature,
            compute_dtype=compute_dtype,
        )
        kl = _padded(per_token, mask)
    return TokenOutputs(_padded(logprobs, mask), _padded(entropy, mask), teacher_kl=kl)


def sampled_states(trunk: nn.Module, batch: TrainBatch, *, compute_dtype: torch.dtype) -> Tensor:
    """Returns the states that predict the sampled tokens, [M, H], row after row.

    The trunk is a causal LM's decoder, without its head.
    """
    is_bfloat16 = compute_dtype == torch.bfloat16
    device = batch.input_ids.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=is_bfloat16):
        hidden = response_states(trunk, batch)
    if batch.env_mask is None:
        return hidden
    # The env's tokens are input, and never predicted.
    sampled = batch.sampled_mask[batch.response_mask].nonzero().squeeze(-1)
    return select_rows(hidden, sampled)


def _padded(per_token: Tensor, mask: Tensor) -> Tensor:
    """Returns [M] (or [M, H]) as [B, T] (or [B, T, H]), 0 outside the mask; differentiable."""
    sizes = per_token.shape[1:]
    whole = per_token.new_zeros(*mask.shape, *sizes)
    return whole.masked_scatter(mask.reshape(*mask.shape, *[1] * len(sizes)), per_token)
