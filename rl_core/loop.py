"""The whole algorithm on one page: problems -> responses -> scores -> advantages -> update.

For reading, and to step through in a debugger: one process, one engine, nothing around it.
Left out, and where it is:

    checkpoints, resume, logs, tests, stops       training.py, trainer.py
    Ray, several engines, a worker that dies      workers/
    generating ahead, turns, replaced groups      rollout/
    memory that runs out                          learner/microbatching.py, rollout/
    a reward function with limits                 rewards/

From Python you train by `rl_core.train`, which keeps all that (docs/from-python.md).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from rl_core.batch import collate
from rl_core.config.run import RunConfig
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.data.sampling import Place, ProblemOrder
from rl_core.learner.learner import Learner
from rl_core.rollout.adaptive_engine import build_engine
from rl_core.rollout.collector import build_requests
from rl_core.rollout.protocol import in_order
from rl_core.runs.teacher import with_teacher
from rl_core.types import (
    Completion,
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
    ScoredText,
)

Score = Callable[[str, Problem], ScoredText]
"""The reward: a response and its problem -> score and verdict."""
_PAD_ID = 0  # masked everywhere, so any token will do


@dataclass(frozen=True)
class Step:
    """What a step did; the learner and the engine hold its weights until the next is asked for."""

    number: int
    rollouts: list[Rollout]
    """`algorithm.group_size` responses to each of `data.train_batch_size` problems."""
    metrics: dict[str, float]
    """Under verl's names: `critic/score/mean`, `actor/pg_loss`, `critic/kl`, ..."""


def steps(
    config: RunConfig, model_path: Path, problems: Sequence[Problem], score: Score
) -> Iterator[Step]:
    """Yields `trainer.total_steps` steps of training (without that setting, steps without end)."""
    config = with_teacher(config, model_path, logging.getLogger(__name__).warning)
    tokenizer = load_tokenizer(str(model_path))
    questions = prompted(problems, tokenizer, chat_template=config.env.chat_template)
    decode, _ = text_codec(tokenizer)
    order = ProblemOrder(Place(config.seed, len(questions), 0, 0), config.data.train_batch_size)
    sampling = SamplingSettings(config.data.max_response_length, config.rollout.temperature)
    group_size = config.algorithm.group_size

    learner = Learner(config, model_path)  # actor, critic, reference and their optimizers
    engine = build_engine(config, model_path, config.rollout.max_num_seqs)
    number = 0
    while number != config.trainer.total_steps:
        number += 1
        # 1. Problems. Each is asked once per pass over the data, in an order given by the seed.
        chosen = [questions[i] for i in order.choose(number)]
        # 2. Responses: `group_size` to each problem, with the log-prob of each sampled token.
        torch.set_num_threads(config.resources.rollout_threads)
        requests = build_requests(chosen, group_size=group_size, seed=config.seed, step=number)
        completions = in_order(engine.generate(requests, sampling))
        # 3. Scores.
        rollouts = scored(chosen, completions, group_size, decode, score)
        # 4. Log-probs, values and advantages; 5. losses, gradients and optimizer steps.
        torch.set_num_threads(1)  # on a CPU the learner runs micro-batches in threads of its own
        engine.release_weights()
        metrics, _ = learner.learn(collate(rollouts, _PAD_ID))
        # 6. New weights.
        engine.update_weights(learner.weights())
        yield Step(number, rollouts, metrics)


def scored(
    problems: Sequence[PromptedProblem],
    completions: Sequence[Completion],
    group_size: int,
    decode: Callable[[Sequence[int]], str],
    score: Score,
) -> list[Rollout]:
    """Returns the responses as text, with their scores, `group_size` in a row per problem."""
    rollouts = []
    for i, completion in enumerate(completions):
        group_id, sample_index = divmod(i, group_size)
        item = problems[group_id]
        text = decode(completion.response_ids.tolist())
        rollouts.append(
            Rollout(
                problem=item.problem,
                group_id=group_id,
                sample_index=sample_index,
                prompt_text=item.prompt_text,
                prompt_ids=item.prompt_ids,
                completion=completion,
                response_text=text,
                scored=score(text, item.problem),
            )
        )
    return rollouts
