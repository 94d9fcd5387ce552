"""What a data set's prompts are like: how long, and whether they would teach the model nothing."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import polars as pl
import pyarrow as pa

from rl_core.config.run import RunConfig
from rl_core.data.template_check import Render as TemplateRender
from rl_core.data.template_check import look_at_template
from rl_core.data.user_files import MEDIA_MARK
from rl_core.types import Message

_CANDIDATES = (32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Limits that people set."""
_OWN_ROWS: Final = 10_000
_GENERATED_ROWS: Final = 64
"""An env's own prompts are alike; a second for 10,000 rows."""
_TOO_FAR = 2.0  # a limit this many times the longest prompt is called a waste
Counts: TypeAlias = dict[int, int]  # tokens -> number of prompts of that length
_TAGS: Final = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|eot_id|user|assistant|system|end)\|>"
    r"|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
)
"""Tags of the usual chat templates."""
Prompt = Sequence[Message]
Finding = tuple[str, str, bool, list[dict[str, Any]]]
"""A check's name, what it proves and the remedy, whether it is an error, the rows that break it."""
Render = Callable[[Prompt], str]  # messages -> the text that the model reads


@dataclass(frozen=True)
class LengthReport:
    """Token counts of all prompts of a data set, summed up."""

    verdict: str  # one sentence on `data.max_prompt_length`
    limits: list[dict[str, Any]]  # by candidate: `limit`, `rejected`, their `share`, a `note`

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        yield f"{'limit':>11}{'rejected':>10}{'share':>10}"
        for row in self.limits:
            note = f"  {row['note']}" if row["note"] else ""
            yield f"{row['limit']:>11,}{row['rejected']:>10,}{row['share']:>10}{note}"
        yield self.verdict


def report_lengths(lengths: pl.DataFrame, limit: int) -> LengthReport:
    """Returns the report of all prompts (`split` and `prompt_tokens`, at least one row)."""
    prompts = dict(lengths.group_by("prompt_tokens").len().sort("prompt_tokens").iter_rows())
    return LengthReport(verdict=_verdict(prompts, limit), limits=_limits(prompts, limit))


def _verdict(prompts: Counts, limit: int) -> str:
    total = sum(prompts.values())
    rejected = _rejected(prompts, limit)
    longest = max(prompts)
    spread = f"{longest} tokens" if len(prompts) == 1 else f"{min(prompts)} to {longest} tokens"
    keeps = f"the smallest limit that keeps all is {longest}"
    setting = f"data.max_prompt_length={limit}"
    if rejected == total:
        return f"all {total:,} prompts are rejected by {setting}: they take {spread}; {keeps}"
    if rejected:
        some = f"{rejected:,} of {total:,} prompts ({_share(rejected, total)})"
        return f"{some} are rejected by {setting}: prompts take {spread}; {keeps}"
    fit = f"all {total:,} prompts fit into {setting}: they take {spread}"
    if limit == longest:
        return f"{fit}, which is the smallest limit that keeps all"
    if limit >= _TOO_FAR * longest:
        return f"{fit}; {1 - longest / limit:.0%} of that room is never used: {keeps}"
    return f"{fit}; {keeps}, {limit - longest} fewer"


def _limits(prompts: Counts, limit: int) -> list[dict[str, Any]]:
    """Rows of limits: the largest that rejects all to the smallest that keeps all, and `limit`."""
    total = sum(prompts.values())
    shortest = min(prompts)
    longest = max(prompts)
    below = [candidate for candidate in _CANDIDATES if candidate < shortest]
    above = [candidate for candidate in _CANDIDATES if candidate > longest]
    shown = {candidate for candidate in _CANDIDATES if shortest <= candidate <= longest}
    notes = {longest: "the smallest that keeps all", limit: "data.max_prompt_length"}
    if limit == longest:
        notes[limit] = "data.max_prompt_length, and the smallest that keeps all"
    return [
        {
            "limit": candidate,
            "rejected": (rejected := _rejected(prompts, candidate)),
            "share": _share(rejected, total),
            "note": notes.get(candidate, ""),
        }
        for candidate in sorted({*below[-1:], *shown, *above[:1], *notes})
    ]


def _rejected(prompts: Counts, limit: int) -> int:
    return sum(count for tokens, count in prompts.items() if tokens > limit)


def _share(part: int, total: int) -> str:
    """Returns a share as text, as 0% or 100% only if it is exactly that."""
    percent = f"{100 * part / total:.1f}%"
    if part and percent == "0.0%":
        return "<0.1%"
    return ">99.9%" if part < total and percent == "100.0%" else percent


def look_at_prompts(config: RunConfig, splits: Mapping[str, pa.Table]) -> list[Finding]:
    """Returns the findings about prompts that the env did not write."""
    is_chat = config.env.prompt_template == "chat"
    rows = _placed_prompts(splits, None)

    def broken(breaks: Callable[[Prompt], object]) -> list[dict[str, Any]]:
        return [row | {"text": one[-1]["content"]} for row, one in rows if breaks(one)]

    findings: list[Finding] = [
        (
            "prompt_no_json",
            "no message is itself the JSON of messages (json.loads turns the column's text into "
            "a list of messages)",
            True,
            broken(lambda prompt: any(_is_message_as_json(one["content"]) for one in prompt)),
        ),
        (
            "prompt_no_tags",
            "no message holds a chat template's tags, which the model's own template writes again "
            "(leave the tags out, or choose env.prompt_template=base for texts that are templated)",
            True,
            broken(lambda prompt: is_chat and any(_TAGS.search(one["content"]) for one in prompt)),
        ),
        (
            "prompt_open_turn",
            "no prompt ends with a message of the assistant, whose turn the chat template closes "
            "(leave it out, or put it into the user's message)",
            True,
            broken(lambda prompt: is_chat and prompt[-1]["role"] == "assistant"),
        ),
        (
            "prompt_no_media",
            "no message has a mark for a picture, a video or sound, which models here do not read "
            "(leave such rows out)",
            False,
            broken(lambda prompt: any(MEDIA_MARK.search(one["content"]) for one in prompt)),
        ),
    ]
    if not config.env.reward:
        mark = config.env.checks.answer_mark
        has_mark = any(mark in message["content"] for _, prompt in rows for message in prompt)
        proves = (
            f"a prompt mentions {mark}, which the reward looks for (ask for it in the prompts, "
            "or score them with env.reward=package.module:function)"
        )
        without = [] if has_mark else broken(lambda prompt: True)[:1]
        findings.append(("prompt_asks_for_answer", proves, False, without))
    return findings


def look_at_rendering(
    config: RunConfig, splits: Mapping[str, pa.Table], render: TemplateRender
) -> list[Finding]:
    """Returns the findings about what the model's chat template makes of the first prompts."""
    count = _OWN_ROWS if config.data.train_files else _GENERATED_ROWS
    return [
        (one.check, f"{one.proves} ({one.remedy})", one.refuses, one.broken)
        for one in look_at_template(_placed_prompts(splits, count), render)
    ]


def _placed_prompts(
    splits: Mapping[str, pa.Table], most: int | None
) -> list[tuple[dict[str, Any], Prompt]]:
    """Returns the first prompts of each split with their places."""
    return [
        ({"split": split, "index": row["extra_info"]["index"]}, row["prompt"])
        for split, table in splits.items()
        for row in table.slice(0, most).select(["extra_info", "prompt"]).to_pylist()
    ]


def _is_message_as_json(text: str) -> bool:
    value = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text) if text.lstrip().startswith(("[", "{")) else None
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and "content" in first
