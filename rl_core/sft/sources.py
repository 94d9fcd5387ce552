"""The examples for fine-tuning: traces of the train split, or a user's file (stage 0).

Prompts are tokenized as in a rollout, and responses separately from them.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from transformers import PreTrainedTokenizerBase

from rl_core.config.model import TRACE_STEPS, TRACES
from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_solved
from rl_core.data.prompts import encode_prompt, turn_end_id
from rl_core.envs.rows import Record
from rl_core.rollout.model_files import stop_token_ids
from rl_core.sft.fit import Example
from rl_core.sft.named_data import (
    SETTING,
    check_sft,
    conversation,
    named_rows,
    refuse_few,
    rollouts_folder,
)
from rl_core.types import ChatTemplate, Message, Problem

_TRACE_DRAWS: Final = 20
"""Attempts to write a trace of a problem that is short enough."""
_HELD_OUT_SHARE: Final = 0.1


@dataclass(frozen=True)
class SftSource:
    """Examples to learn, and others to measure with."""

    draw: Callable[[int], list[Example]]
    """The batch of a step, from 0: always the same for a step."""
    held_out: list[Example]
    num_steps: int
    what: str


def sft_source(config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Path) -> SftSource:
    """Returns what `sft.data` names: traces of the data set in the folder `data`, or rows.

    ValueError if the env has no traces, a trace does not fit, or a row cannot be learned from.
    """
    if config.sft.data == TRACES:
        return _traces(config, tokenizer, data)
    return _rows(config, tokenizer)


def _traces(config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Path) -> SftSource:
    check_sft(config)
    sft = config.sft
    longest = config.data.max_response_length
    train, test = (
        [pair for pair in read_solved(data / f"{split}.parquet") if pair[1]]
        for split in ("train", "test")
    )
    if not train or not test:
        raise ValueError(
            f"{SETTING}=traces: {len(train)} train and {len(test)} test problems have a solution, "
            "some of both are needed: use generated data, or a FILE"
        )

    traces = config.env.sft
    assert traces is not None, "check_sft refused it"

    def example(problem: Problem, solution: str, rng: random.Random) -> Example:
        """Returns a trace that fits into `data.max_response_length`."""
        lengths = []
        for _ in range(_TRACE_DRAWS):
            response = traces.write_trace(config.env, problem, solution, rng, sft.give_up_prob)
            chat = config.env.chat_template
            drawn = _encode(
                problem.messages, response, tokenizer, chat_template=chat, in_turns=bool(chat)
            )
            lengths.append(int(sum(drawn.weights)))
            if lengths[-1] <= longest:
                return drawn
        raise ValueError(
            f"{SETTING}=traces: data.max_response_length={longest} tokens is too short: one of "
            f"{_TRACE_DRAWS} traces of a problem has {min(lengths)} at least; raise it, or use a "
            "FILE"
        )

    def draw(step: int) -> list[Example]:
        rng = random.Random(f"{sft.seed}/{step}")
        return [example(*pair, rng) for pair in rng.choices(train, k=sft.batch_size)]

    held_out_rng = random.Random(f"{sft.seed}/held out")
    return SftSource(
        draw,
        held_out=[example(*pair, held_out_rng) for pair in test[: sft.held_out]],
        num_steps=sft.steps or TRACE_STEPS,
        what=f"traces of {len(train):,} train problems",
    )


def _rows(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> SftSource:
    sft = config.sft
    # A run's prompts are kept as the model has read them.
    chat = None if rollouts_folder(config) is None else False
    rows = [_read(config, tokenizer, *row, chat=chat) for row in named_rows(config)]
    refuse_few(config, len(rows))
    random.Random(sft.seed).shuffle(rows)
    count = max(1, min(sft.held_out, int(len(rows) * _HELD_OUT_SHARE)))
    learned = rows[count:]

    def draw(step: int) -> list[Example]:
        first = step * sft.batch_size
        places = (divmod(i, len(learned)) for i in range(first, first + sft.batch_size))
        return [learned[order(epoch)[place]] for epoch, place in places]

    @lru_cache(2)
    def order(epoch: int) -> list[int]:
        return random.Random(f"{sft.seed}/{epoch}").sample(range(len(learned)), len(learned))

    return SftSource(
        draw,
        held_out=rows[:count],
        num_steps=sft.steps or math.ceil(sft.epochs * len(learned) / sft.batch_size),
        what=f"{len(learned):,} rows of {sft.data}",
    )


def _read(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    where: str,
    record: Record,
    *,
    chat: bool | None = None,
) -> Example:
    """Returns a row as an example; `chat`: whether its prompt gets the chat template, if known."""
    try:
        messages, response, is_text = conversation(record)
        if chat is None and not is_text and not tokenizer.chat_template:
            raise ValueError(
                "messages need a tokenizer with a chat template, and this model's has none: "
                "write prompt as a text"
            )
        in_turns = not is_text or config.env.prompt_template == "chat"
        template = (in_turns if chat is None else chat) and (config.env.chat_args or True)
        example = _encode(messages, response, tokenizer, chat_template=template, in_turns=in_turns)
        if len(example.ids) > config.sft.max_length:
            raise ValueError(
                f"{len(example.ids):,} tokens are above sft.max_length={config.sft.max_length}: "
                "raise it, or leave the row out"
            )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return example


@lru_cache(maxsize=1)
def _end_id(tokenizer: PreTrainedTokenizerBase, *, in_turns: bool) -> int:
    """Returns the token that ends a response: one that stops the engines, too."""
    stops = stop_token_ids(Path(tokenizer.name_or_path))
    preferred = (turn_end_id(tokenizer) if in_turns else None, tokenizer.eos_token_id)
    return next((one for one in preferred if one in stops), stops[0])


def _encode(
    messages: Sequence[Message],
    response: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chat_template: ChatTemplate,
    in_turns: bool,
) -> Example:
    """Returns an example: the prompt has weight 0, the response and its end token weight 1."""
    _, prompt_ids = encode_prompt(messages, tokenizer, chat_template=chat_template)
    ids = [
        *tokenizer.encode(response, add_special_tokens=False),
        _end_id(tokenizer, in_turns=in_turns),
    ]
    return Example([*prompt_ids, *ids], [0.0] * len(prompt_ids) + [1.0] * len(ids))
