"""Ragged rollouts -> one padded batch -> mini-batches of whole groups -> micro-batches by budget.

Legend: B responses, T response tokens, L prompt + response tokens.

Layout: each row is [prompt | response | padding], padded on the right only. Under causal attention
no real token then sees padding, positions are simply 0..L-1, and neither an attention mask nor
position ids are needed. [B, T] tensors hold the response from column 0 on, right-padded with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.types import REWARD_ERROR, Problem, Rollout


@dataclass(frozen=True)
class TrainBatch:
    """The rollouts of a step, or some of them, as tensors on one device."""

    input_ids: Tensor
    """int64 [B, L]: prompt, response, then padding."""
    prompt_lengths: Tensor
    """int64 [B], tokens, at least 1."""
    response_lengths: Tensor
    """int64 [B], tokens, at least 1."""
    rollout_logprobs: Tensor
    """float32 [B, T], as the engine returned them; 0 at the env's tokens."""
    rewards: Tensor
    """float32 [B], the scorer's."""
    group_ids: Tensor
    """int64 [B], equal for responses to one prompt."""
    correct: Tensor
    """bool [B]: the verdict was `correct`."""
    truncated: Tensor
    """bool [B]: generation stopped at the length limit."""
    unscored: Tensor | None = None
    """bool [B]: the reward failed; None if all have a score."""
    env_mask: Tensor | None = None
    """bool [B, T]: the env's tokens, never a response's first or last; None if there are none."""
    turn_rewards: Tensor | None = None
    """float32 [B, T]: a turn's own reward at its last token, else 0; None if `env_mask` is None."""
    problems: tuple[Problem, ...] = ()
    """Of a step's whole batch, what each response answers; empty in a part of it."""

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def lengths(self) -> Tensor:
        """Tokens of prompt and response together, int64 [B]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def response_mask(self) -> Tensor:
        """Real response tokens, including the env's, bool [B, T]."""
        columns = torch.arange(self.rollout_logprobs.shape[1], device=self.input_ids.device)
        return columns < self.response_lengths.unsqueeze(-1)

    @property
    def sampled_mask(self) -> Tensor:
        """Tokens that the model sampled (not the env's), bool [B, T]: only these enter a loss."""
        mask = self.response_mask
        return mask if self.env_mask is None else mask & ~self.env_mask

    def prompts(self) -> tuple[Tensor, Tensor]:
        """Returns one row of each of the G groups, and for each row the index of its group.

        The rows are int64 [G]; the indices into them int64 [B]. A group's rows share one prompt.
        """
        groups, prompt_of_row = torch.unique(self.group_ids, return_inverse=True)
        rows = torch.arange(len(self), device=self.group_ids.device)
        return torch.empty_like(groups).scatter_(0, prompt_of_row, rows), prompt_of_row

    def predictor_index(self) -> Tensor:
        """Returns the positions in the flattened [B * L] that predict the N response tokens, int64.

        The state before a token predicts it (and has its value), so the first position is that of
        the prompt's last token.
        """
        rows, columns = self.response_mask.nonzero(as_tuple=True)
        return rows * self.input_ids.shape[1] + self.prompt_lengths[rows] - 1 + columns

    def sampled_ids(self) -> Tensor:
        """Returns the tokens that the model sampled, row after row, int64 [M]."""
        ids = self.input_ids.flatten()[self.predictor_index() + 1]
        return ids if self.env_mask is None else ids[self.sampled_mask[self.response_mask]]

    @property
    def num_sampled(self) -> Tensor:
        """Tokens that the model sampled, int64 [B], at least 1."""
        return self.response_lengths if self.env_mask is None else self.sampled_mask.sum(dim=-1)

    @property
    def outcomes(self) -> Tensor:
        """The total reward of each response, the scorer's and its turns', float32 [B]."""
        return self.rewards + (0 if self.turn_rewards is None else self.turn_rewards.sum(dim=-1))

    def select(self, rows: Tensor) -> TrainBatch:
        """Returns the given rows (int64 [b]), trimmed to the longest of them."""
        rows = rows.to(self.input_ids.device)
        prompt_lengths = self.prompt_lengths[rows]
        response_lengths = self.response_lengths[rows]
        num_columns = int((prompt_lengths + response_lengths).max())
        longest = int(response_lengths.max())
        return TrainBatch(
            input_ids=self.input_ids[rows, :num_columns],
            prompt_lengths=prompt_lengths,
            response_lengths=response_lengths,
            rollout_logprobs=self.rollout_logprobs[rows, :longest],
            rewards=self.rewards[rows],
            group_ids=self.group_ids[rows],
            correct=self.correct[rows],
            truncated=self.truncated[rows],
            unscored=None if self.unscored is None else self.unscored[rows],
            env_mask=None if self.env_mask is None else self.env_mask[rows, :longest],
            turn_rewards=None if self.turn_rewards is None else self.turn_rewards[rows, :longest],
        )

    def to(self, device: torch.device) -> TrainBatch:
        """Returns the batch on a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def collate(rollouts: Sequence[Rollout], pad_id: int = 0) -> TrainBatch:
    """Returns the rollouts as one batch in their order, on the CPU; nothing depends on `pad_id`."""
    prompts: dict[int, tuple[int, ...]] = {}
    for rollout in rollouts:
        assert rollout.prompt_ids, f"problem {rollout.problem.index} has no prompt"
        assert len(rollout.completion.response_ids), f"problem {rollout.problem.index}: no response"
        assert prompts.setdefault(rollout.group_id, rollout.prompt_ids) == rollout.prompt_ids
    prompt_lengths = np.array([len(r.prompt_ids) for r in rollouts], dtype=np.int64)
    response_lengths = np.array([len(r.completion.response_ids) for r in rollouts], dtype=np.int64)
    longest = int((prompt_lengths + response_lengths).max())
    input_ids = np.full((len(rollouts), longest), pad_id, dtype=np.int64)
    logprobs = np.zeros((len(rollouts), int(response_lengths.max())), dtype=np.float32)
    env_mask = np.zeros(logprobs.shape, dtype=np.bool_)
    turn_rewards = np.zeros_like(logprobs)
    for row, rollout in enumerate(rollouts):
        completion = rollout.completion
        prompt = prompt_lengths[row]
        response = response_lengths[row]
        input_ids[row, :prompt] = rollout.prompt_ids
        input_ids[row, prompt : prompt + response] = completion.response_ids
        logprobs[row, :response] = completion.logprobs
        env_mask[row, :response] = ~completion.sampled
        end = 0
        for turn in completion.turns:
            end += turn.num_tokens
            turn_rewards[row, end - 1] += turn.reward
    has_turns = any(r.completion.turns for r in rollouts)
    unscored = [r.scored.verdict == REWARD_ERROR for r in rollouts]
    on_cpu = partial(torch.tensor, device="cpu")
    return TrainBatch(
        input_ids=torch.from_numpy(input_ids),
        prompt_lengths=torch.from_numpy(prompt_lengths),
        response_lengths=torch.from_numpy(response_lengths),
        rollout_logprobs=torch.from_numpy(logprobs),
        rewards=on_cpu([r.scored.score for r in rollouts], dtype=torch.float32),
        group_ids=on_cpu([r.group_id for r in rollouts], dtype=torch.int64),
        correct=on_cpu([r.scored.verdict == "correct" for r in rollouts]),
        truncated=on_cpu([r.completion.finish_reason == "length" for r in rollouts]),
        unscored=on_cpu(unscored) if any(unscored) else None,
        env_mask=torch.from_numpy(env_mask) if has_turns else None,
        turn_rewards=torch.from_numpy(turn_rewards) if has_turns else None,
        problems=tuple(r.problem for r in rollouts),
    )


def micro_batches(
    batch: TrainBatch, budget_tokens: int, *, share_prompts: bool
) -> list[tuple[Tensor, int]]:
    """Returns rows (int64 [b]) and padded tokens of micro-batches under a budget of these.

    Rows of similar length go together, longest first, so that there is little padding. If prompts
    are shared, the rows of a group go together instead if that makes fewer tokens in all. Each row
    is in exactly one micro-batch; a row longer than the budget has one of its own, as rows stay
    whole. `share_prompts`: a group's prompt is computed once per micro-batch.
    """
    columns = (batch.prompt_lengths, batch.response_lengths, batch.group_ids)
    rows = list(zip(range(len(batch)), *(x.tolist() for x in columns), strict=True))
    rows.sort(key=lambda row: -row[1] - row[2])
    batches = _packed(rows, budget_tokens, share_prompts=share_prompts)
    if share_prompts:
        place = {group: i for i, group in enumerate(dict.fromkeys(row[3] for row in rows))}
        rows.sort(key=lambda row: place[row[3]])
        shared = _packed(rows, budget_tokens, share_prompts=True)
        if sum(size for _, size in shared) < sum(size for _, size in batches):
            batches = shared
    return [(torch.tensor(numbers, device="cpu"), size) for numbers, size in batches]


def _packed(
    rows: Sequence[tuple[int, int, int, int]], budget_tokens: int, *, share_prompts: bool
) -> list[tuple[list[int], int]]:
    """Returns micro-batches of rows in their order, each with the tokens computed for it.

    `rows` hold (row, prompt tokens, response tokens, group).
    """
    batches: list[list[int]] = []
    sizes: list[int] = []
    longest = (0, 0, 0)
    groups = set[int]()
    for row, prompt, response, group in rows:
        lengths = (prompt, response, prompt + response)
        most = (
            max(longest[0], lengths[0]),
            max(longest[1], lengths[1]),
            max(longest[2], lengths[2]),
        )
        num_rows = len(batches[-1]) + 1 if batches else 1
        size = _size(num_rows, len(groups | {group}), most, share_prompts=share_prompts)
        if batches and size <= budget_tokens:
            batches[-1].append(row)
            sizes[-1] = size
            longest = most
            groups.add(group)
        else:
            batches.append([row])
            sizes.append(prompt + response)
            longest = lengths
            groups = {group}
    return list(zip(batches, sizes, strict=True))


def _size(
    num_rows: int, num_groups: int, longest: tuple[int, int, int], *, share_prompts: bool
) -> int:
    """Returns the tokens computed for rows; `longest`: their prompt, response and whole row."""
    if share_prompts and num_groups < num_rows:
        return num_groups * longest[0] + num_rows * longest[1]
    return num_rows * longest[2]


def mini_batches(group_ids: Tensor, num_groups: int) -> list[Tensor]:
    """Returns rows (int64 [b] each, ascending) of mini-batches of whole groups, in their order.

    The last mini-batch may hold fewer groups.
    """
    seen: dict[int, int] = {}
    ranks = torch.tensor(
        [seen.setdefault(group, len(seen)) for group in group_ids.tolist()], device="cpu"
    )
    return [
        torch.nonzero((ranks >= first) & (ranks < first + num_groups)).squeeze(-1)
        for first in range(0, len(seen), num_groups)
    ]


def balanced_rows(batch: TrainBatch, num_parts: int) -> list[Tensor]:
    """Returns rows (int64 [b] each, ascending) of parts of whole groups, about equal in tokens.

    The longest group goes to the part with the fewest tokens so far, then the next (LPT).
    """
    tokens: dict[int, int] = {}
    for group, length in zip(batch.group_ids.tolist(), batch.lengths.tolist(), strict=True):
        tokens[group] = tokens.get(group, 0) + length
    assert len(tokens) >= num_parts, f"{len(tokens)} groups for {num_parts} parts"
    sizes = [0] * num_parts
    part_of: dict[int, int] = {}
    for group in sorted(tokens, key=lambda group: -tokens[group]):  # stable: ties in batch order
        part_of[group] = part = sizes.index(min(sizes))
        sizes[part] += tokens[group]
    parts = torch.tensor([part_of[group] for group in batch.group_ids.tolist()], device="cpu")
    return [torch.nonzero(parts == part).squeeze(-1) for part in range(num_parts)]
