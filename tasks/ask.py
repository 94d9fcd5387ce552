"""Asks one model a few questions, in this process: it needs no Ray and keeps no rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.config.run import RunConfig
from rl_core.envs.text_env import Question
from rl_core.system.model_folder import CONFIG, read_object
from rl_core.system.process_env import hide_cuda_only_packages, process_environment
from rl_core.system.seeds import seed_of
from rl_core.types import GenerationRequest, Problem, ScoredText

if TYPE_CHECKING:
    from rl_core.rollout.hf_engine import HfEngine


@dataclass(frozen=True)
class Reply:
    """One response of the model."""

    question: Question
    response: str
    num_tokens: int
    is_cut: bool  # it reached the longest response that is allowed
    scored: ScoredText | None


def read_question(config: RunConfig, text: str, answer: str | None = None) -> Question:
    """Returns a user's question in the env's prompt; some envs cannot score it without `answer`."""
    if any("\ud800" <= character <= "\udfff" for character in text + (answer or "")):
        raise ValueError("the question holds bytes that are no UTF-8")
    return config.env.read_question(text, answer)


def question_of(config: RunConfig, problem: Problem) -> Question:
    """Returns a problem of a data set as a question."""
    return Question(config.env.show_problem(problem), problem, is_scored=True)


def ask_model(
    config: RunConfig, model: Path, questions: Sequence[Question], *, samples: int | None
) -> Iterator[Reply]:
    """Yields the model's responses, question after question.

    Uses transformers, which is ready in seconds (vLLM: half a minute). Draws `samples` responses
    per question by `evaluation.temperature`, `top_p` and `top_k`; None: one response, decoded by
    `evaluation.decoding`. ValueError if a question has a token without an embedding, or too many
    tokens.
    """
    on_gpu = config.resources.rollout_gpus > 0
    os.environ |= process_environment(num_threads=config.resources.learner_threads, on_gpu=on_gpu)
    hide_cuda_only_packages()
    from rl_core.data.prompts import check_embedded, encode_prompt, load_tokenizer, text_codec
    from rl_core.data.tool_form import tool_form
    from rl_core.rewards.scoring import start_rewards
    from rl_core.rollout.turns import TurnTaking

    tokenizer = load_tokenizer(str(model))
    chat = config.env.chat_template
    posed = [question for question in questions for _ in range(samples or 1)]
    requests = [
        GenerationRequest(
            encode_prompt(question.problem.messages, tokenizer, chat_template=chat)[1],
            seed_of(config.evaluation.seed, question.problem.index, number % (samples or 1)),
        )
        for number, question in enumerate(posed)
    ]
    check_embedded((request.prompt_ids for request in requests), tokenizer)
    shape = read_object(model / CONFIG)
    known = shape.get("text_config", shape).get("max_position_embeddings")
    limit = config.data.max_prompt_length if known is None else known
    if (num_tokens := max(len(request.prompt_ids) for request in requests)) > limit:
        raise ValueError(
            f"the question has {num_tokens:,} tokens, and {model} reads at most {limit:,}: "
            "ask a shorter one"
        )
    sampling = config.evaluation.sampling(
        config.data.max_response_length,
        config.evaluation.decoding if samples is None else "sampled",
    )
    engine = _engine(config, model, on_gpu=on_gpu)
    decode, encode = text_codec(tokenizer)
    form = tool_form(tokenizer, chat)
    with start_rewards(config.env, config.reward) as rewards:
        turns = TurnTaking(config.env, decode, encode, rewards.toolbox, form)
        problems = (question.problem for question in posed)
        completions = dict(turns.play(engine.generate, requests, sampling, [*problems]))
        for number, question in enumerate(posed):
            completion = completions[number]
            ids = completion.response_ids.tolist()
            text = decode(ids)
            scored = (
                rewards.submit(text, question.problem, completion.turns).result()
                if question.is_scored
                else None
            )
            yield Reply(question, text, len(ids), completion.finish_reason == "length", scored)


def _engine(config: RunConfig, model: Path, *, on_gpu: bool) -> HfEngine:
    import torch
    from transformers.utils.logging import disable_progress_bar

    from rl_core.data.adapter_source import base_of
    from rl_core.rollout.hf_engine import HfEngine
    from rl_core.rollout.model_files import read_weights

    disable_progress_bar()

    torch.set_num_threads(config.resources.learner_threads)
    base = base_of(model)
    engine = HfEngine(
        base,
        dtype=config.compute_dtype,
        max_num_seqs=config.rollout.max_num_seqs,
        on_gpu=on_gpu and torch.cuda.is_available(),
    )
    if base != model:
        engine.update_weights(read_weights(model))
    return engine
