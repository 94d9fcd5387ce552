"""One row of a user's file, in any known shape -> one checked problem (stage 1).

Countdown rows are `{nums, target}`, or rows of verl and TinyZero (`prompt`, `reward_model`), or our
own; GSM8K rows are `{question, answer}`, or verl's. A row's own prompt is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from rl_core.config.env import CountdownConfig, Gsm8kConfig
from rl_core.data.readers import Record
from rl_core.envs import countdown, gsm8k
from rl_core.types import Message

COLUMNS = ("nums", "target", "question", "answer", "prompt", "reward_model", "extra_info")
"""All that is read of a row."""
NUM_OPERANDS = range(2, 7)
NUMBERS = range(1, 1_000)
TARGETS = range(1, 10**18)
"""What the solver takes."""

UNKNOWN_TEMPLATE = "unknown"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """One row, read and checked."""

    key: tuple[Any, ...]
    """Rows with equal keys are one problem: (sorted numbers, target), or the prompt's texts."""
    prompt: list[Message]
    template: str
    """Which template of the env writes this prompt; `UNKNOWN_TEMPLATE` if none does."""
    truth: dict[str, Any] | str
    solution: str = ""
    num_solutions: int = 0


def read_problem(env: CountdownConfig | Gsm8kConfig, record: Record) -> OwnProblem:
    """Returns the problem of one row.

    Raises:
        ValueError: something is missing, of a wrong type or outside what the solver takes; the
            message names the value, the limit and a remedy.
    """
    if isinstance(env, CountdownConfig):
        return _countdown_problem(env, record)
    return _gsm8k_problem(env, record)


def _countdown_problem(env: CountdownConfig, record: Record) -> OwnProblem:
    truth = _part(record, "reward_model").get("ground_truth")
    stated: list[tuple[Any, Any]] = []
    if record.get("nums") is not None or record.get("target") is not None:
        stated.append((record.get("nums"), record.get("target")))
    if truth is not None:
        if not isinstance(truth, dict):
            raise ValueError(f"ground_truth={_shown(truth)} must be {{target, numbers}}")
        stated.append((truth.get("numbers"), truth.get("target")))
    if not stated:
        raise ValueError("it has neither nums and target nor reward_model.ground_truth: add them")
    numbers, target = stated[0]
    _check_numbers(numbers)
    if type(target) is not int or target not in TARGETS:
        raise ValueError(
            f"target={_shown(target)} must be a whole number from {TARGETS[0]} to {TARGETS[-1]:.0e}"
        )
    if stated[-1] != stated[0]:
        raise ValueError(
            f"nums={numbers} and target={target} are not those of reward_model.ground_truth "
            f"({_shown(truth)}): correct one of them"
        )
    prompt, template = _prompt(
        _own_prompt(record),
        (env.prompt_template, *get_args(countdown.Template)),
        lambda template: countdown.render_messages(template, numbers, target),
    )
    return OwnProblem(
        key=(tuple(sorted(numbers)), target),
        prompt=prompt,
        template=template,
        truth={"target": target, "numbers": numbers},
    )


def _check_numbers(numbers: Any) -> None:
    limits = f"the solver takes whole numbers from {NUMBERS[0]} to {NUMBERS[-1]}"
    if not isinstance(numbers, list):
        raise ValueError(f"nums={_shown(numbers)} must be a list: {limits}")
    if len(numbers) not in NUM_OPERANDS:
        raise ValueError(
            f"nums={_shown(numbers)} holds {len(numbers)} numbers, the solver takes "
            f"{NUM_OPERANDS[0]} to {NUM_OPERANDS[-1]}: leave the row out"
        )
    for number in numbers:
        if type(number) is not int or number not in NUMBERS:
            raise ValueError(
                f"nums={_shown(numbers)} holds {_shown(number)}, {limits}: leave the row out"
            )


def _gsm8k_problem(env: Gsm8kConfig, record: Record) -> OwnProblem:
    extra = _part(record, "extra_info")
    question = _text(record, extra, "question")
    answer = _text(record, extra, "answer") or _text(extra, {}, "solution")
    truth = _part(record, "reward_model").get("ground_truth")
    if truth is not None and not isinstance(truth, str):
        raise ValueError(f"ground_truth={_shown(truth)} must be a number as text, such as '18'")
    if truth is None and answer is None:
        raise ValueError("it has neither `answer` nor reward_model.ground_truth: add one")
    answer = answer or f"#### {truth}"
    number = gsm8k.extract_truth(answer)
    if truth is not None and gsm8k.score_response(f"#### {truth}", number).verdict != "correct":
        raise ValueError(f"ground_truth={_shown(truth)} is not its answer's number {number}")
    prompt = _own_prompt(record)
    if question is None and prompt is None:
        raise ValueError("it has neither `question` nor `prompt`: add one")
    prompt, template = _prompt(
        prompt,
        (env.prompt_template, *get_args(gsm8k.Template)),
        lambda template: gsm8k.render_messages(template, question or _framed(template, prompt)),
    )
    return OwnProblem(
        key=tuple(message["content"] for message in prompt),
        prompt=prompt,
        template=template,
        truth=number,
        solution=answer,
    )


def _framed(template: gsm8k.Template, prompt: list[Message] | None) -> str:
    """Returns what stands in a prompt where the template has the question; the rest may differ."""
    before, after = gsm8k.render_messages(template, "\0")[0]["content"].split("\0")
    content = prompt[0]["content"] if prompt else ""
    return content[len(before) : len(content) - len(after)]


def _prompt(
    own: list[Message] | None, templates: Sequence[Any], render: Callable[[Any], list[Message]]
) -> tuple[list[Message], str]:
    """Returns a row's own prompt, else the first template's, and the template that writes it."""
    if own is None:
        return render(templates[0]), templates[0]
    return own, next((name for name in templates if render(name) == own), UNKNOWN_TEMPLATE)


def _own_prompt(record: Record) -> list[Message] | None:
    prompt = record.get("prompt")
    if prompt is None:
        return None
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise ValueError(
            f"prompt={_shown(prompt)} must be a list of {{role, content}}, both texts, as verl's"
        )
    return [Message(role=message["role"], content=message["content"]) for message in prompt]


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )


def _part(record: Record, name: str) -> Record:
    """Returns a struct of a row; an absent one is empty."""
    part = record.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name}={_shown(part)} must be an object with named fields")
    return part or {}


def _text(record: Record, extra: Record, name: str) -> str | None:
    value = record.get(name) if record.get(name) is not None else extra.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}={_shown(value)} must be a text")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
