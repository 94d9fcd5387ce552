"""What a model's chat template makes of messages: whether the model reads all that was written."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from rl_core.types import Message

Prompt: TypeAlias = Sequence[Message]
Render: TypeAlias = Callable[..., str]
"""`render(messages, **names)`, see `rl_core.data.prompts.rendered`; ValueError if it fails."""
_DAYS: Final = (datetime(2001, 2, 3, 4, 5, 6), datetime(2032, 11, 23, 17, 38, 49))
"""Two moments that differ in each part."""
_TRIES: Final = 4
_OF_THE_MODEL: Final = ("assistant", "tool", "function")
"""Templates shorten what a model wrote or got earlier, such as its thoughts, with good reason."""


class TemplateFinding(NamedTuple):
    """A rule for chat templates, and the prompts that break it."""

    check: str
    proves: str
    remedy: str
    refuses: bool
    broken: list[dict[str, Any]]


def look_at_template(
    prompts: Sequence[tuple[dict[str, Any], Prompt]], render: Render
) -> list[TemplateFinding]:
    """Returns each rule with the prompts that break it, by where they stand and what is wrong."""
    kinds: dict[tuple[str, ...], Prompt] = {}
    texts: dict[str, tuple[dict[str, Any], list[str]]] = {}
    alike: list[dict[str, Any]] = []
    left_out: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for place, prompt in prompts:
        text = render(prompt)
        kinds.setdefault(tuple(message["role"] for message in prompt), prompt)
        lacking = _left_out(prompt, text)
        for refuses, rows in left_out.items():
            named = (m for m in lacking if (m["role"] not in _OF_THE_MODEL) == refuses)
            rows += ({"role": m["role"], "text": m["content"]} | place for m in islice(named, 1))
        words = [f"{message['role']}: {message['content'].strip()}" for message in prompt]
        other_place, other = texts.setdefault(text, (place, words))
        if other != words:
            alike.append({**place, "text": words[-1], "as": other_place})
    left_out[True] += _left_out_by_role(kinds, render) if not left_out[True] else []
    changing = [
        {"roles": roles, "text": prompt[-1]["content"]}
        for roles, prompt in kinds.items()
        if _is_other_tomorrow(prompt, render)
    ]
    proves = "the chat template writes the text of each message as it is"
    return [
        TemplateFinding(
            "template_keeps_messages",
            proves,
            "put that text into the message of the user, or take a model whose template writes it",
            True,
            left_out[True],
        ),
        TemplateFinding(
            "template_keeps_answers",
            f"{proves}, those of assistant and tool too",
            "the model does not read what is left out, as the template's author may have meant",
            False,
            left_out[False],
        ),
        TemplateFinding(
            "template_tells_apart",
            "other messages are another text under the chat template",
            "choose env.prompt_template=base, or a model whose template writes all messages",
            True,
            alike,
        ),
        TemplateFinding(
            "template_same_tomorrow",
            "the chat template writes the same text tomorrow",
            "it depends on the day (strftime_now) or on chance, so the prompt differs each "
            "night and after a resume: write a fixed date into the chat template",
            False,
            changing,
        ),
    ]


def _left_out(prompt: Prompt, text: str) -> list[Message]:
    """Returns the messages that do not stand in a text, each in a place of its own."""
    lacking = []
    for message in sorted(prompt, key=lambda one: -len(one["content"])):
        content = message["content"].strip()  # as many templates do
        if content and content not in text:
            lacking.append(message)
        elif content:
            text = text.replace(content, "\0", 1)
    return lacking


def _left_out_by_role(kinds: dict[tuple[str, ...], Prompt], render: Render) -> list[dict[str, Any]]:
    """Looks with texts that stand nowhere else: a short one may be part of the template."""
    lacking = []
    for roles in kinds:
        prompt: list[Message] = [
            {"role": role, "content": f"Qx{number}Zj, a Text of 7 Words: {number}Kv."}
            for number, role in enumerate(roles)
        ]
        try:
            named = [m["role"] for m in _left_out(prompt, render(prompt))]
        except ValueError:  # it takes only texts of a certain form
            continue
        lacking += [{"role": role, "roles": roles} for role in named if role not in _OF_THE_MODEL]
    return lacking


def _is_other_tomorrow(prompt: Prompt, render: Render) -> bool:
    texts = {render(prompt, strftime_now=day.strftime) for day in _DAYS for _ in range(_TRIES)}
    return len(texts) > 1
