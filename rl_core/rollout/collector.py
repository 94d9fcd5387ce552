"""Stage 3 and 4 of a step: ask the engines, score what comes back while they continue."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rl_core.algos.advantages import MIN_SPREAD
from rl_core.config.run import RunConfig
from rl_core.envs.text_env import TextEnv
from rl_core.rewards.scoring import Rewards
from rl_core.rollout.turns import Stream, TurnTaking, turn_metrics, within_bounds
from rl_core.system.seeds import seed_of
from rl_core.types import (
    REWARD_ERROR,
    Completion,
    GenerationRequest,
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
    ScoredText,
)

_MULTIPLIER = np.uint64(6_364_136_223_846_793_005)


@dataclass(frozen=True)
class Answer:
    """A completion, its text, and the future of its score."""

    completion: Completion
    text: str
    scored: Future[ScoredText]


@dataclass(frozen=True)
class Collected:
    """The rollouts that a step learns from, and the metrics of collecting them."""

    rollouts: list[Rollout]
    """`group_size` per problem of the batch, group after group."""
    metrics: dict[str, float]
    """Of the problems chosen first, so that replacing groups does not raise the accuracy.

    `rollout/tokens_per_s` counts the sampled tokens of replaced groups too.
    """
    num_correct: dict[int, int] = field(default_factory=dict)
    """Correct responses to each problem that was asked, replaced or not, by its position.

    Without the problems of which a response could not be scored.
    """


@dataclass(frozen=True)
class Collector:
    """What a step's rollouts are made with."""

    config: RunConfig
    problems: Sequence[PromptedProblem]
    stream: Stream
    turns: TurnTaking
    rewards: Rewards

    def collect(
        self,
        chosen: Sequence[int],
        step: int,
        *,
        spares: Callable[[int], Sequence[int]],
        clock: Callable[[str], AbstractContextManager[None]],
    ) -> Collected:
        """Returns a step's scored rollouts of the problems at the `chosen` positions.

        In up to `algorithm.resample_rounds` rounds, groups that teach nothing (all scores are
        equal, or the outcome gate is closed) are replaced by groups of other problems (DAPO,
        arXiv:2503.14476, section 3.2): of the first ones that `spares` of the step names and that
        were not chosen. Groups that no round could replace stay.

        `step` counts from 1. The clock times `gen`, and as `reward` the rest of the scoring after
        it.
        """
        group_size = self.config.algorithm.group_size
        sampling = SamplingSettings(
            self.config.data.max_response_length, self.config.rollout.temperature
        )
        num_tokens = 0
        seconds = 0.0
        num_correct: dict[int, int] = {}

        def ask(positions: Sequence[int]) -> list[Rollout]:
            nonlocal num_tokens, seconds
            drawn_problems = [self.problems[i] for i in positions]
            requests = build_requests(
                drawn_problems, group_size=group_size, seed=self.config.seed, step=step
            )
            of_requests = [item.problem for item in drawn_problems for _ in range(group_size)]
            start = time.perf_counter()
            with clock("gen"):
                played = self.turns.play(self.stream, requests, sampling, of_requests)
                answers = read_answers(
                    played, of_requests, decode=self.turns.decode, rewards=self.rewards
                )
            seconds += time.perf_counter() - start
            num_tokens += sum(answer.completion.num_sampled for answer in answers)
            with clock("reward"):
                fresh = to_rollouts(drawn_problems, answers, self.config.env, group_size=group_size)
            num_correct.update(_num_correct(positions, fresh, group_size))
            return fresh

        rollouts = ask(chosen)
        metrics = reward_metrics(rollouts)
        if self.config.env.max_turns > 1:
            completions = [rollout.completion for rollout in rollouts]
            metrics |= turn_metrics(completions, has_tools=self.turns.toolbox is not None)
        if rounds := self.config.algorithm.resample_rounds:
            taken = set(chosen)
            replaced = 0
            others = [i for i in spares(step) if i not in taken]
            for _ in range(rounds):
                flat = [g for g in range(len(chosen)) if not _teaches(rollouts, g, self.config)]
                drawn = others[: len(flat)]
                others = others[len(flat) :]
                if not drawn:
                    break
                fresh = ask(drawn)
                useful = [g for g in range(len(drawn)) if _teaches(fresh, g, self.config)]
                for old, new in zip(flat, useful, strict=False):
                    rollouts[old * group_size : (old + 1) * group_size] = [
                        replace(rollout, group_id=old)
                        for rollout in fresh[new * group_size : (new + 1) * group_size]
                    ]
                replaced += len(useful)
            metrics["group/replaced_frac"] = replaced / len(chosen)
        metrics["rollout/tokens_per_s"] = num_tokens / seconds
        return Collected(rollouts, metrics, num_correct)


def _num_correct(
    positions: Sequence[int], rollouts: Sequence[Rollout], group_size: int
) -> Iterator[tuple[int, int]]:
    """Yields a problem's position and how many of its responses are right, if all were scored."""
    for group, position in enumerate(positions):
        members = rollouts[group * group_size : (group + 1) * group_size]
        verdicts = Counter(rollout.scored.verdict for rollout in members)
        if REWARD_ERROR not in verdicts:  # else nobody knows how many were right
            yield position, verdicts["correct"]


def _teaches(rollouts: Sequence[Rollout], group: int, config: RunConfig) -> bool:
    size = config.algorithm.group_size
    members = rollouts[group * size : (group + 1) * size]
    members = [one for one in members if one.scored.verdict != REWARD_ERROR]
    all_fail = "correct" not in {rollout.scored.verdict for rollout in members}
    is_gated = all_fail and config.algorithm.outcome_gate
    if config.algorithm.formula.ignores_rewards:  # maxrl: only the verdict counts
        return len({rollout.scored.verdict == "correct" for rollout in members}) > 1
    rewards = [rollout.reward for rollout in members] or [0.0]
    return not is_gated and max(rewards) - min(rewards) > MIN_SPREAD


def build_requests(
    problems: Sequence[PromptedProblem], *, group_size: int, seed: int, step: int
) -> list[GenerationRequest]:
    """Returns `group_size` requests per problem, each with a seed of its own."""
    return [
        GenerationRequest(
            item.prompt_ids,
            seed_of(seed, step, item.problem.index, sample),
            problem=item.problem.index,
        )
        for item in problems
        for sample in range(group_size)
    ]


def read_answers(
    finished: Iterable[tuple[int, Completion]],
    problems: Sequence[Problem],
    *,
    decode: Callable[[Sequence[int]], str],
    rewards: Rewards,
) -> list[Answer]:
    """Returns all completions as text in the order of the requests, their scores under way."""
    answers: dict[int, Answer] = {}
    for position, completion in finished:
        text = decode(completion.response_ids.tolist())
        scored = rewards.submit(text, problems[position], completion.turns)
        answers[position] = Answer(completion, text, scored)
    return [answers[position] for position in range(len(problems))]


def to_rollouts(
    problems: Sequence[PromptedProblem], answers: Sequence[Answer], env: TextEnv, *, group_size: int
) -> list[Rollout]:
    """Returns answers in the order of `build_requests` as scored rollouts, turns within bounds."""
    rollouts = []
    for i, answer in enumerate(answers):
        group_id, sample_index = divmod(i, group_size)
        item = problems[group_id]
        scored = answer.scored.result()
        completion = answer.completion
        if completion.turns:
            turns = within_bounds(completion.turns, scored.score, full_score=env.full_score)
            completion = replace(completion, turns=turns)
        rollouts.append(
            Rollout(
                problem=item.problem,
                group_id=group_id,
                sample_index=sample_index,
                prompt_text=item.prompt_text,
                prompt_ids=item.prompt_ids,
                completion=completion,
                response_text=answer.text,
                scored=scored,
            )
        )
    return rollouts


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns accuracy (no format credit), verdict shares, score, and the mean repeated share."""
    verdicts = Counter(rollout.scored.verdict for rollout in rollouts)
    shares = {f"reward/verdict/{code}": n / len(rollouts) for code, n in sorted(verdicts.items())}
    scores = np.array([rollout.reward for rollout in rollouts])
    repeated = [repeated_share(rollout.completion.response_ids) for rollout in rollouts]
    by_name = [dict(rollout.scored.rewards) for rollout in rollouts if rollout.scored.rewards]
    names = by_name[0] if by_name else ()
    return {
        "reward/accuracy": verdicts["correct"] / len(rollouts),
        "critic/score/mean": float(scores.mean()),
        "critic/score/max": float(scores.max()),
        "critic/score/min": float(scores.min()),
        "rollout/repeated_frac": float(np.mean(repeated)),
        **shares,
        **{f"reward/{name}/mean": float(np.mean([one[name] for one in by_name])) for name in names},
    }


def repeated_share(token_ids: NDArray[np.int64], length: int = 8) -> float:
    """Returns which share of a response's runs of `length` tokens has occurred in it before.

    0 for one that repeats nothing or is shorter than two runs, near 1 for a loop.
    """
    if len(token_ids) <= length:
        return 0.0
    # Runs are hashed by a polynomial modulo 2^64: two different ones collide once in 10^19.
    powers = np.cumprod(np.full(length, _MULTIPLIER))
    runs = np.convolve(token_ids.astype(np.uint64), powers, "valid")
    return 1 - len(set(runs.tolist())) / len(runs)
