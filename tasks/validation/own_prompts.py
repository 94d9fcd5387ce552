"""Looks at prompts of a user's own as the model will see them: what would teach it nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.types import Message

_TAGS: Final = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|user|assistant|system|end)\|>"
    r"|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
)
"""Of the usual chat templates."""

Prompt = Sequence[Message]
Finding = tuple[str, str, bool, list[dict[str, Any]]]
"""A check's name, what it proves and how to mend it, whether it refuses, the rows that break it."""


def look_at_prompts(config: RunConfig, rows: Iterable[tuple[str, int, Prompt]]) -> list[Finding]:
    """Returns what was looked at.

    Args:
        config: the run's settings.
        rows: (split, index, messages) of each problem.
    """
    is_chat = config.env.prompt_template == "chat"
    mark = config.env.answer_mark
    json_rows, tagged, closed, has_mark, first = [], [], [], False, None
    for split, index, messages in rows:
        texts = [message["content"] for message in messages]
        row = {"split": split, "index": index, "text": texts[-1]}
        first = first or row
        has_mark = has_mark or any(mark in text for text in texts)
        if any(map(_is_message_as_json, texts)):
            json_rows.append(row)
        if is_chat and any(map(_TAGS.search, texts)):
            tagged.append(row)
        if is_chat and messages[-1]["role"] == "assistant":
            closed.append(row)
    found: list[Finding] = [
        (
            "prompt_no_json",
            "no message is itself the JSON of messages (json.loads turns the column's text into "
            "a list of messages)",
            True,
            json_rows,
        ),
        (
            "prompt_no_tags",
            "no message holds a chat template's tags, which the model's own template writes again "
            "(leave the tags out, or choose env.prompt_template=base for texts that are templated)",
            True,
            tagged,
        ),
        (
            "prompt_open_turn",
            "no prompt ends with a message of the assistant, whose turn the chat template closes "
            "(leave it out, or put it into the user's message)",
            True,
            closed,
        ),
    ]
    if config.env.reward is None:
        found.append(
            (
                "prompt_asks_for_answer",
                f"a prompt mentions {mark}, which the reward looks for (ask for it in the prompts, "
                "or score them with env.reward=package.module:function)",
                False,
                [] if has_mark or first is None else [first],
            )
        )
    return found


def _is_message_as_json(text: str) -> bool:
    if not text.lstrip().startswith(("[", "{")):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "content" in first


Render = Callable[[Prompt], str]
"""Messages -> the text that the model reads."""
