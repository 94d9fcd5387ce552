"""Right and wrong answers of an evaluation, to be read: in the terminal, as a page, as an artifact.

All of it is text that a model wrote: each of the three makes it harmless in its own way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rl_core.envs.rows import question_in, shown_truth
from rl_core.evaluation.summary import EvaluationSummary, summarise
from rl_core.system.words import in_one_line, printable, without_middle
from rl_core.tracking.rollout_samples import in_turns
from rl_core.types import Problem
from tasks.prefect_ui.artifacts import create_markdown_artifact, quoted
from tasks.report_page.samples import Sample, as_sample

IN_TERMINAL: Final = 3
"""Right answers shown, and as many wrong ones."""
ON_PAGE: Final = 12
IN_ARTIFACT: Final = 4
_MOST_CELLS: Final = 2_000
"""Of the picture, one per problem."""
_LONGEST_QUESTION: Final = 300
_LONGEST_LINE: Final = 60
_LONGEST_IN_ARTIFACT: Final = 1_500
"""Characters around the answer."""

Row = dict[str, Any]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shown:
    """One problem and what the model made of it."""

    problem: str
    """Short: `19, 11, 9 -> 39`, or the question and its truth."""
    tokens: int
    sample: Sample


@dataclass(frozen=True)
class Answers:
    """What a model answered greedily: all verdicts, and some answers in full."""

    model: str
    run_id: str
    """Empty where the model is of no run."""
    evaluation: str
    summary: EvaluationSummary
    verdicts: Mapping[str, int]
    """How often each, the most frequent first."""
    cells: tuple[tuple[int, str], ...]
    """Problem and verdict, by problem; of very many the first."""
    right: tuple[Shown, ...]
    wrong: tuple[Shown, ...]
    """One of each verdict in turn."""

    @property
    def name(self) -> str:
        """`RUN/step_000100`, or the name of a model of no run."""
        return f"{self.run_id}/{self.model}" if self.run_id else self.model

    @property
    def num_right(self) -> int:
        """Problems solved."""
        return self.verdicts.get("correct", 0)


def choose_answers(rows: Sequence[Row], problems: Sequence[Problem], *, most: int) -> Answers:
    """Returns some of a model's right and wrong answers, the same ones each time.

    Args:
        rows: complete, of one model and evaluation.
        problems: that were asked.
        most: right answers, and as many wrong ones.
    """
    asked = {problem.index: problem for problem in problems}
    greedy = [row for row in rows if row["mode"] == "greedy"]
    right = [row for row in greedy if row["verdict"] == "correct"]
    wrong = [row for row in greedy if row["verdict"] != "correct"]

    def shown(chosen: Sequence[Row]) -> tuple[Shown, ...]:
        return tuple(
            Shown(_in_words(row, asked), row["response_tokens"], as_sample(row))
            for row in in_turns(chosen, most)
        )

    return Answers(
        model=greedy[0]["model"],
        run_id=greedy[0]["run_id"],
        evaluation=greedy[0]["evaluation"],
        summary=summarise(rows),
        verdicts=dict(Counter(row["verdict"] for row in greedy).most_common()),
        cells=tuple((row["prompt_index"], row["verdict"]) for row in greedy[:_MOST_CELLS]),
        right=shown(right),
        wrong=shown(wrong),
    )


def as_table(answers: Answers) -> list[dict[str, str]]:
    """Returns a few answers for a terminal, which no text in them can steer, right ones first."""
    return [
        {
            "verdict": shown.sample.verdict,
            "problem": _line(shown.problem),
            "answer": _line(shown.sample.answer.strip()) or f"... {_end(shown.sample.before)}",
            "tokens": str(shown.tokens),
        }
        for shown in (*answers.right[:IN_TERMINAL], *answers.wrong[:IN_TERMINAL])
    ]


def show_answers(several: Sequence[Answers], pages: Sequence[Path]) -> None:
    """Shows some answers of each model in the Prefect UI; see `as_markdown`."""
    create_markdown_artifact(
        as_markdown(several, pages), key="answers", description="Some right and wrong answers."
    )


def as_markdown(several: Sequence[Answers], pages: Sequence[Path]) -> str:
    """Returns some answers as markdown that no text of a model can break out of, and the pages."""
    parts = []
    for one in several:
        parts.append(f"## {one.name}: {one.num_right} of {one.summary.num_problems} right")
        parts += map(_as_markdown, (*one.right[:IN_ARTIFACT], *one.wrong[:IN_ARTIFACT]))
    parts += [f"More of them: {page.resolve()}" for page in pages]
    return "\n\n".join(parts) + "\n"


def _as_markdown(shown: Shown) -> str:
    one = shown.sample
    text = one.before[-_LONGEST_IN_ARTIFACT:] + one.answer + one.after[:_LONGEST_IN_ARTIFACT]
    head = f"### {one.verdict}, {shown.tokens} tokens"
    return f"{head}\n\nAsked:\n\n{quoted(shown.problem)}\n\nAnswered:\n\n{quoted(text)}"


def _in_words(row: Row, asked: Mapping[int, Problem]) -> str:
    problem = asked.get(row["prompt_index"])
    if problem is None:
        return f"problem {row['prompt_index']}"
    truth = problem.ground_truth
    if isinstance(truth, Mapping) and truth.keys() >= {"numbers", "target"}:
        return f"{', '.join(map(str, truth['numbers']))} -> {truth['target']}"
    question = _short(question_in(problem.messages[-1]["content"]), _LONGEST_QUESTION)
    return f"{question} -> {_short(shown_truth(truth), _LONGEST_QUESTION)}"


def _line(text: str) -> str:
    return printable(_short(text, _LONGEST_LINE))


def _end(text: str) -> str:
    return printable(in_one_line(text)[-_LONGEST_LINE:])


def _short(text: str, longest: int) -> str:
    return without_middle(in_one_line(text), longest)
