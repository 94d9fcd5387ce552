"""How a model's chat template writes tool calls and their replies (stage 3).

The model's own text is never rendered again: of a rendering with a tool's turn only what follows
the assistant's turn is taken, and encoded behind the sampled tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transformers import PreTrainedTokenizerBase

from rl_core.data.prompts import rendered, turn_end_id
from rl_core.envs.tool_env import HERMES, calls_in
from rl_core.types import ChatTemplate, Message

_USER: Final = Message(role="user", content="Is 7 odd?")
_ANSWER: Final = "Yes, 7 is odd."
_TOOL: Final = "is_odd_probe"
_CALL: Final[Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": _TOOL, "arguments": {"n": 7}}}],
}


@dataclass(frozen=True)
class ToolForm:
    """Reads a model's calls, and writes the replies."""

    tokenizer: PreTrainedTokenizerBase
    names: Mapping[str, Any]
    """What the template gets besides the messages."""
    before: str
    """A rendered conversation up to the token that ends the assistant's turn."""
    end_id: int
    """That token."""
    marks: tuple[str, str]
    """Texts before and after the JSON of a call; empty if a call is the whole response."""

    @property
    def shows_tools(self) -> bool:
        """Whether the template writes the tools into a prompt."""
        others = {name: value for name, value in self.names.items() if name != "tools"}
        shown, plain = (rendered([_USER], self.tokenizer, **some) for some in (self.names, others))
        return shown != plain

    def calls_in(self, ids: Sequence[int]) -> list[str]:
        """Returns the calls of a turn as JSON, as the model wrote them; none if it continues."""
        if not ids or ids[-1] != self.end_id:
            return []
        return calls_in(str(self.tokenizer.decode(ids[:-1])), self.marks)

    def reply(self, replies: Sequence[str]) -> str:
        """Returns what follows a turn: the tools' replies, and the beginning of the next turn."""
        answers = [Message(role="tool", content=text) for text in replies]
        turns = [_USER, Message(role="assistant", content=_ANSWER), *answers]
        return rendered(turns, self.tokenizer, **self.names).removeprefix(self.before)


def tool_form(tokenizer: PreTrainedTokenizerBase, chat_template: ChatTemplate) -> ToolForm | None:
    """Returns how tools are called; None without tools; ValueError if the template has no way."""
    if not isinstance(chat_template, dict) or "tools" not in chat_template:
        return None
    if (end_id := turn_end_id(tokenizer)) is None:
        raise ValueError("env: tools need a chat template that ends a turn by a special token")
    end = str(tokenizer.decode([end_id]))
    answer = Message(role="assistant", content=_ANSWER)
    closed = rendered([_USER, answer], tokenizer, is_prompt=False, **chat_template)
    before = closed[: closed.rindex(end) + len(end)]
    tool = Message(role="tool", content=_TOOL)
    text = rendered([_USER, answer, tool], tokenizer, **chat_template)
    if not text.startswith(before):
        raise ValueError(
            "env: the model's chat template writes an assistant's turn otherwise once a tool has "
            "answered it, so the model would learn from text that it is never shown: use a model "
            "or a chat_template.jinja that keeps it (a template for training)"
        )
    if _TOOL not in text:
        raise ValueError("env: the model's chat template leaves out what a tool answers")
    marks = _marks(
        rendered([_USER, _CALL], tokenizer, is_prompt=False, **chat_template),
        closed.rpartition(_ANSWER)[0],
        end,
    )
    return ToolForm(tokenizer, chat_template, before, end_id, marks)


def _marks(text: str, header: str, end: str) -> tuple[str, str]:
    """Returns the texts around the JSON of a call that a template has written."""
    place = text.find(f'"{_TOOL}"')
    if _TOOL not in text:
        return HERMES
    try:
        start = text.rindex("{", 0, max(place, 0))
        _, stop = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        raise ValueError(
            "env: the model's chat template writes a call of a tool in another form than JSON"
        ) from None
    return text[:start].removeprefix(header).strip(), text[stop:].partition(end)[0].strip()
