"""What envs share whose problems are a question in words and any truth (data path stages 1 and 4).

A truth that is a text lies in the data set as it is. Any other, a number or an object, lies there
as JSON, its `style` being `JSON_STYLE`; whoever reads the data set gets it back as it was.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rl_core.envs.answer_tags import AnswerFrom, find_answer
from rl_core.envs.user_rows import OwnProblem, columns_of
from rl_core.types import OWN_EXTRA_INFO, Message, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

JSON_STYLE: Final = "json"
LONGEST_ANSWER: Final = 1_000
"""Characters of an answer that are compared: a longer one is wrong."""

CHECKS: Final = (
    "text_no_nulls.sql",
    "text_prompt.sql",
    "text_unique.sql",
    "text_splits_disjoint.sql",
)
"""SQL checks of rows that any question in words must pass."""

Template: TypeAlias = Literal["chat", "base"]

_QUESTION = (
    "{question}\nShow your work in <think> </think> tags. And return the final answer in <answer> "
    "</answer> tags."
)
_TEXTS: dict[Template, str] = {
    "chat": _QUESTION,
    "base": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        f"provides the user with the answer.\nUser: {_QUESTION}\n"
        "Assistant: Let me solve this step by step.\n<think>"
    ),
}


def render_messages(template: Template, question: str) -> list[Message]:
    """Returns the `prompt` column of one question, one user message.

    Args:
        template: `chat` is rendered by the tokenizer's own chat template, `base` is a whole prompt
            text to be tokenized raw.
        question: in words.
    """
    return [Message(role="user", content=_TEXTS[template].replace("{question}", question))]


def question_in(content: str) -> str:
    """Returns what a prompt asks, without the words of the template that wrote it."""
    for template in _TEXTS.values():
        before, _, after = template.partition("{question}")
        if content.startswith(before) and content.endswith(after):
            return content.removeprefix(before).removesuffix(after)
    return content


def prompt_key(prompt: Sequence[Message]) -> tuple[str, ...]:
    """Returns what two prompts share that ask the same: their words, not their white space."""
    return tuple(" ".join(message["content"].split()) for message in prompt)


def text_table(split: str, problems: Sequence[OwnProblem], data_sources: Sequence[str]) -> pa.Table:
    """Returns the rows of one split as an Arrow table.

    Args:
        split: its name, for `extra_info`.
        problems: whose truths are any values of JSON.
        data_sources: the column of this name.
    """
    import pyarrow as pa

    from rl_core.schema import dataset_schema

    columns = columns_of("", split, problems)
    columns["data_source"] = list(data_sources)
    columns["reward_model"] = [_reward_model(problem.truth) for problem in problems]
    extra: list[tuple[str, pa.DataType]] = []
    if any(problem.extra_info for problem in problems):
        extra = [(OWN_EXTRA_INFO, pa.string())]
        for info, problem in zip(columns["extra_info"], problems, strict=True):
            info[OWN_EXTRA_INFO] = problem.extra_info
    return pa.Table.from_pydict(columns, schema=dataset_schema(pa.string(), extra=extra))


def text_of_truth(truth: Any) -> str:
    """Returns a truth as a text: a number or an object as JSON."""
    return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)


def shown_truth(truth: Any) -> str:
    """Returns what is right, as a person reads it: of a truth with a question, its answer."""
    if isinstance(truth, Mapping) and truth.keys() >= {"question", "answer"}:
        truth = truth["answer"]
    return text_of_truth(truth)


def score_text(
    response: str, truth: str, *, answer_from: AnswerFrom, format_score: float, full_score: float
) -> ScoredText:
    """Returns the score of an answer that must be the truth, word for word.

    Case, white space, the form of Unicode (NFKC) and a full stop at the end do not count. Total,
    deterministic and linear in the response's length.

    Args:
        response: what the model wrote after the prompt; any text.
        truth: the right answer.
        answer_from: where the answer's tags may stand.
        format_score: score of another answer.
        full_score: score of the right answer.

    Returns:
        `no_answer` (score 0), `wrong_value` (format_score) or `correct` (full_score).
    """
    raw = find_answer(response, answer_from).strip()
    if not raw:
        return ScoredText(0.0, "no_answer", None)
    value = _normal_form(raw) if len(raw) <= LONGEST_ANSWER else None
    if value == _normal_form(truth):
        return ScoredText(full_score, "correct", raw, value)
    return ScoredText(format_score, "wrong_value", raw[:LONGEST_ANSWER], value)


def _normal_form(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".")


def _reward_model(truth: Any) -> dict[str, str]:
    style = "rule" if isinstance(truth, str) else JSON_STYLE
    return {"style": style, "ground_truth": text_of_truth(truth)}
