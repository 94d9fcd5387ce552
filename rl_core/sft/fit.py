"""Supervised steps: examples -> gradient of the weighted mean loss -> update, data path stage 0.

The one loop of train.py and tune.py: they differ in optimizer, and in how a batch is split.

Legend: N learned tokens, H hidden size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from rl_core.batch import TrainBatch
from rl_core.models.forward import sampled_states
from rl_core.models.logprobs import Head, token_logprobs
from rl_core.system.threads import MicroBatchThreads

_WORTH_SHARING: Final = 0.1
"""A common beginning is read once if that saves this share of the tokens: it costs a pass."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of prompt and response, and the loss weight of each id: 0 teaches nothing."""

    ids: list[int]
    weights: list[float]


MicroBatches: TypeAlias = Sequence[Sequence[Example]]
"""Of one batch."""


@dataclass(frozen=True)
class Fitting:
    """A model that learns."""

    model: Any
    """A causal LM; all its parameters that require gradient learn."""
    pad_id: int
    threads: MicroBatchThreads
    compute_dtype: torch.dtype = torch.float32
    """float32, or bfloat16 for autocast."""
    whole_logits: bool = False
    """Compute all logits at once, for a small vocabulary: faster than block by block."""

    def fit(
        self,
        backward: Callable[[int], float],
        update: Callable[[float], None],
        *,
        steps: range,
        warmup_steps: int,
    ) -> Iterator[tuple[int, float]]:
        """Trains in place; yields (steps done, loss) after each step.

        `backward` adds the gradient of a step, from 0, and returns its mean loss; `update` moves
        the weights, with a share of the peak learning rate. After a resume `steps` begin later.
        """
        for step in steps:
            loss = backward(step)
            if not math.isfinite(loss):
                raise ValueError(f"loss {loss} at step {step + 1}: lower sft.lr or base_model.lr")
            torch.nn.utils.clip_grad_norm_(self.parameters, max_norm=1.0)
            update(schedule(step, warmup_steps=warmup_steps, num_steps=steps.stop))
            self.model.zero_grad()
            yield step + 1, loss

    def backward(self, examples: Sequence[Example], micro_batches: MicroBatches) -> float:
        """Adds the gradient of the mean loss, which it returns, in nats per token."""
        total = sum(sum(example.weights) for example in examples)

        def micro_loss(some: Sequence[Example]) -> tuple[Tensor, float]:
            loss = self.summed_loss(some) / total
            return loss, loss.item()

        return sum(self.threads.accumulate(self.parameters, micro_loss, micro_batches))

    @torch.no_grad()
    def mean_loss(self, examples: Sequence[Example], micro_batches: MicroBatches) -> float:
        """Returns the mean loss, in nats per token."""
        total = sum(sum(example.weights) for example in examples)
        return sum(self.summed_loss(some).item() for some in micro_batches) / total

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def summed_loss(self, examples: Sequence[Example]) -> Tensor:
        """Returns the weighted sum of some examples' token losses, with gradient."""
        on_cpu, weights = _batched(examples, self.pad_id)
        batch = on_cpu.to(self.model.device)
        dtype = self.compute_dtype
        hidden = sampled_states(self.model.get_decoder(), batch, compute_dtype=dtype)
        targets = batch.sampled_ids()
        if self.whole_logits:
            losses = functional.cross_entropy(self.model.lm_head(hidden), targets, reduction="none")
        else:
            head = Head.of(self.model)
            losses = -token_logprobs(hidden, head, targets, temperature=1.0, compute_dtype=dtype)
        return (losses * weights.to(self.model.device)).sum()


def schedule(step: int, *, warmup_steps: int, num_steps: int) -> float:
    """Returns the share of the learning rate: linear warm-up, then half a cosine down to 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    left = max(num_steps - warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / left))


def split_evenly(examples: Sequence[Example], *, count: int) -> list[Sequence[Example]]:
    """Returns at most `count` micro-batches of about equally many tokens, longest examples first.

    Examples of similar length go together, to save padding, and threads that take a micro-batch
    each end together.
    """
    batches: list[list[Example]] = [[] for _ in range(count)]
    total = sum(len(example.ids) for example in examples)
    seen = 0
    for example in sorted(examples, key=lambda example: len(example.ids), reverse=True):
        batches[seen * count // total].append(example)
        seen += len(example.ids)
    return [batch for batch in batches if batch]


def split_by_tokens(
    examples: Sequence[Example], *, max_tokens: int, threads: int
) -> list[Sequence[Example]]:
    """Returns micro-batches of at most `max_tokens` with padding; a longer example has its own.

    Each thread gets equally many, so that none waits long for the others.
    """
    count = threads
    while True:
        batches = split_evenly(examples, count=count)
        if all(
            len(batch) == 1 or len(batch) * len(batch[0].ids) <= max_tokens for batch in batches
        ):
            return batches
        count += threads


def _batched(examples: Sequence[Example], pad_id: int) -> tuple[TrainBatch, Tensor]:
    """Returns examples as a batch of rollouts, and the learned tokens' weights, float32 [N].

    A response reaches from the first to the last learned token; tokens of weight 0 in between
    count as the env's. If all examples begin with the same tokens, as prompts of one template do,
    these can become the prompt of all, and what follows them belongs to the responses.
    """
    # No token comes before the first one, to predict it.
    learned = [[at for at, w in enumerate(e.weights) if at and w > 0] for e in examples]
    spans = [(places[0], places[-1] + 1) for places in learned]
    columns = zip(
        *(e.ids[: places[0]] for e, places in zip(examples, learned, strict=True)), strict=False
    )
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    num_tokens = sum(end for _, end in spans)
    if is_shared := common * (len(examples) - 1) > _WORTH_SHARING * num_tokens:
        spans = [(common, end) for _, end in spans]
    starts, ends = torch.tensor(spans).unbind(dim=1)
    of_spans = list(zip(examples, spans, strict=True))
    ids = [torch.tensor(example.ids[:end]) for example, (_, end) in of_spans]
    weights = pad_sequence(
        [torch.tensor(example.weights[start:end]) for example, (start, end) in of_spans],
        batch_first=True,
    )
    nothing = torch.zeros(len(examples))
    batch = TrainBatch(
        input_ids=pad_sequence(ids, batch_first=True, padding_value=pad_id),
        prompt_lengths=starts,
        response_lengths=ends - starts,
        rollout_logprobs=torch.zeros_like(weights),
        rewards=nothing,
        group_ids=torch.arange(len(examples)) * (not is_shared),
        correct=nothing > 0,
        truncated=nothing > 0,
    )
    between = batch.response_mask & (weights <= 0)
    if between.any():
        batch = replace(batch, env_mask=between)
    return batch, weights[batch.sampled_mask]
