"""The interface of a rollout engine (stage 3), whichever library generates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from rl_core.types import Completion, GenerationRequest, SamplingSettings

if TYPE_CHECKING:
    import torch


def in_order(finished: Iterable[tuple[int, Completion]]) -> list[Completion]:
    """Returns all completions that an engine yielded, in the order of the requests."""
    return [completion for _, completion in sorted(finished, key=itemgetter(0))]


class RolloutEngine(Protocol):
    """Generates responses with weights that the learner replaces between steps."""

    policy_version: int
    """How many updates made the weights; completions carry this number."""
    digest: str
    """`weight_digest` of the weights that it holds, or read if they cannot be read back."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> Iterator[tuple[int, Completion]]:
        """Yields each request's completion with its position, as soon as it has ended.

        A response ends after an end-of-sequence token of the model's generation config (it is the
        last of `response_ids` and has a log-prob), after the token that completes a text of
        `sampling.stop`, or after `sampling.max_tokens` (or the request's own limit). The same
        prompt and seed give the same response under the same weights, alone or in a batch.
        """
        ...

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces all weights in place, and drops everything computed with the old ones.

        `weights` has all tensors by Hugging Face name, on any device, in any float type; with tied
        embeddings `lm_head.weight` may be left out. The engine may keep them: they must not change
        until `release_weights` or the next update. ValueError if any is missing or does not fit.
        """
        ...

    def release_weights(self) -> None:
        """Frees all weights that it can do without: nothing is generated until the next update."""
        return

    def resize(self, max_num_seqs: int) -> None:
        """Generates `max_num_seqs` responses at a time from now on, with the same weights.

        Also makes an engine whose `generate` ran out of memory usable again.
        """
        ...

    def close(self) -> None:
        """Frees the model's memory; the engine cannot be used afterwards."""
        ...
