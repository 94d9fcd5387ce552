"""Asks one model a few questions, in this process and at once: no Ray, no rows that are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rl_core.config.env import CountdownConfig
from rl_core.config.run import RunConfig
from rl_core.envs import countdown, gsm8k
from rl_core.system.process_env import hide_cuda_only_packages, process_environment
from rl_core.system.seeds import seed_of
from rl_core.types import GenerationRequest, Problem, SamplingSettings, ScoredText

if TYPE_CHECKING:
    from rl_core.rollout.hf_engine import HfEngine

_PUZZLE: Final = re.compile(r"[\s\d,;\[\](){}=:>→-]*")
_FEWEST_NUMBERS: Final = 2


@dataclass(frozen=True)
class Question:
    """What a model is asked."""

    shown: str
    """As a person would write it."""
    problem: Problem
    is_scored: bool
    """Whether the right answer is known."""


@dataclass(frozen=True)
class Reply:
    """One response of the model."""

    question: Question
    response: str
    num_tokens: int
    is_cut: bool
    """It reached the longest response that is allowed."""
    scored: ScoredText | None


def read_question(config: RunConfig, text: str, answer: str | None = None) -> Question:
    """Returns a person's question in the env's own prompt.

    Args:
        config: says which env, and which template.
        text: Countdown: numbers and, last, the target (`3 14 7 = 35`); GSM8K: the word problem.
        answer: of a word problem, if it is to be scored.

    Raises:
        ValueError: it is no puzzle, or the answer is no number.
    """
    env = config.env
    if isinstance(env, CountdownConfig):
        numbers = [int(word) for word in re.findall(r"\d+", text)]
        if not _PUZZLE.fullmatch(text) or len(numbers) <= _FEWEST_NUMBERS:
            raise ValueError(
                f"{text!r} is no puzzle: write numbers and, last, the target, as '3 14 7 = 35' "
                "(env=gsm8k takes word problems)"
            )
        if answer is not None:
            raise ValueError("a puzzle's answer is found by its rule: answer= is for env=gsm8k")
        *numbers, target = numbers
        messages = countdown.render_messages(env.prompt_template, numbers, target)
        truth = {"numbers": numbers, "target": target}
        problem = Problem(0, "countdown", tuple(messages), truth, 0)
        return Question(_puzzle(numbers, target), problem, is_scored=True)
    known = "0" if answer is None else gsm8k.extract_truth(f"#### {answer}")
    asked = tuple(gsm8k.render_messages(env.prompt_template, text))
    problem = Problem(0, gsm8k.DATA_SOURCE, asked, known, 0)
    return Question(text, problem, is_scored=answer is not None)


def question_of(problem: Problem) -> Question:
    """Returns a problem of a data set as a question."""
    truth = problem.ground_truth
    if isinstance(truth, str):
        shown = f"{problem.messages[-1]['content']} (the answer is {truth})"
    else:
        shown = _puzzle(truth["numbers"], truth["target"])
    return Question(shown, problem, is_scored=True)


def ask_model(
    config: RunConfig, model: Path, questions: Sequence[Question], *, samples: int | None
) -> Iterator[Reply]:
    """Yields the model's responses, question after question.

    With transformers: in seconds, where vLLM takes half a minute to be there.

    Args:
        config: says how long a response may be, how it is scored, and how it is sampled.
        model: a model's folder.
        questions: what is asked.
        samples: responses per question at `evaluation.temperature`; None for one that is greedy.
    """
    on_gpu = config.resources.rollout_gpus > 0
    threads = config.resources.learner_threads
    os.environ |= process_environment(num_threads=threads, on_gpu=on_gpu, offline=True)
    hide_cuda_only_packages()
    from rl_core.data.prompts import encode_prompt, load_tokenizer
    from rl_core.rewards.scoring import start_rewards

    tokenizer = load_tokenizer(str(model))
    chat = config.env.prompt_template == "chat"
    asked = [question for question in questions for _ in range(samples or 1)]
    requests = [
        GenerationRequest(
            encode_prompt(question.problem.messages, tokenizer, chat_template=chat)[1],
            seed_of(config.evaluation.seed, question.problem.index, number % (samples or 1)),
        )
        for number, question in enumerate(asked)
    ]
    temperature = 0.0 if samples is None else config.evaluation.temperature
    sampling = SamplingSettings(config.data.max_response_length, temperature)
    engine = _engine(config, model, on_gpu=on_gpu)
    completions = dict(engine.generate(requests, sampling))
    with start_rewards(config.env) as rewards:
        for number, question in enumerate(asked):
            completion = completions[number]
            ids = completion.response_ids.tolist()
            text = str(tokenizer.decode(ids, skip_special_tokens=True))
            is_cut = completion.finish_reason == "length"
            known = question.is_scored
            scored = rewards.submit(text, question.problem).result() if known else None
            yield Reply(question, text, len(ids), is_cut, scored)


def _engine(config: RunConfig, model: Path, *, on_gpu: bool) -> HfEngine:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from rl_core.rollout.hf_engine import HfEngine

    disable_progress_bar()

    torch.set_num_threads(config.resources.learner_threads)
    return HfEngine(
        model,
        dtype=config.model.dtype,
        max_num_seqs=config.rollout.max_num_seqs,
        on_gpu=on_gpu and torch.cuda.is_available(),
    )


def _puzzle(numbers: Sequence[int], target: int) -> str:
    return f"{', '.join(map(str, numbers))} = {target}"
