"""Stage 3 and 4 of a step: ask the engines, score what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rl_core.config import CountdownConfig, Gsm8kConfig
from rl_core.envs.scoring import score
from rl_core.seeds import seed_of
from rl_core.types import Completion, GenerationRequest, Problem, Rollout


@dataclass(frozen=True)
class PromptedProblem:
    """A problem with its prompt as text and as token ids: tokenized once per run."""

    problem: Problem
    prompt_text: str
    prompt_ids: tuple[int, ...]


def build_requests(
    problems: Sequence[PromptedProblem], *, group_size: int, seed: int, step: int
) -> list[GenerationRequest]:
    """Returns `group_size` requests per problem, each with a seed of its own."""
    return [
        GenerationRequest(item.prompt_ids, seed_of(seed, step, item.problem.index, sample))
        for item in problems
        for sample in range(group_size)
    ]


def score_completions(
    problems: Sequence[PromptedProblem],
    completions: Sequence[Completion],
    *,
    group_size: int,
    env: CountdownConfig | Gsm8kConfig,
    decode: Callable[[Sequence[int]], str],
) -> list[Rollout]:
    """Returns the rollouts of a step: each completion beside its problem, decoded and scored.

    Args:
        problems: those that were asked.
        completions: `group_size` per problem, in the order of `build_requests`.
        group_size: completions per problem.
        env: the scorer's settings.
        decode: token ids without special tokens to text.
    """
    rollouts = []
    for i, completion in enumerate(completions):
        group_id, sample_index = divmod(i, group_size)
        item = problems[group_id]
        text = decode(completion.response_ids.tolist())
        scored = score(env, text, item.problem.ground_truth)
        rollouts.append(
            Rollout(
                problem=item.problem,
                group_id=group_id,
                sample_index=sample_index,
                prompt_text=item.prompt_text,
                prompt_ids=item.prompt_ids,
                completion=completion,
                response_text=text,
                scored=scored,
            )
        )
    return rollouts


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns accuracy and verdict shares: accuracy never contains format credit."""
    verdicts = Counter(rollout.scored.verdict for rollout in rollouts)
    shares = {f"reward/verdict/{code}": n / len(rollouts) for code, n in sorted(verdicts.items())}
    scores = np.array([rollout.scored.score for rollout in rollouts])
    return {
        "reward/accuracy": verdicts["correct"] / len(rollouts),
        "critic/score/mean": float(scores.mean()),
        "critic/score/max": float(scores.max()),
        "critic/score/min": float(scores.min()),
        **shares,
    }
