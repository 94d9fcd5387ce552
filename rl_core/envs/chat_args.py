"""What a user may hand to a model's chat template (`env.chat_args`)."""

import json
from collections.abc import Mapping
from typing import Any, Final

_SET_BY_US: Final = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation"),
        *("documents", "max_length", "messages", "padding", "return_assistant_tokens_mask"),
        *("return_dict", "return_tensors", "strftime_now", "tokenize", "tokenizer_kwargs"),
        *("tools", "truncation"),
    }
)
"""What transformers' `apply_chat_template` takes itself, or a template gets from it."""


def check_chat_args(chat_args: Mapping[str, Any], template: str) -> None:
    """Raises ValueError if no template is used, or an argument is not the user's or not JSON."""
    if not chat_args:
        return
    if template != "chat":
        raise ValueError(
            f"env.chat_args={chat_args} is for a chat template, which "
            f"env.prompt_template={template} does not use: leave it out"
        )
    if taken := sorted(chat_args.keys() & _SET_BY_US):
        raise ValueError(
            f"env.chat_args.{taken[0]} is set by this program: leave it out (what a template "
            "reads stands in the model's chat_template)"
        )
    try:
        json.dumps(chat_args, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"env.chat_args must hold JSON values ({error})") from None
