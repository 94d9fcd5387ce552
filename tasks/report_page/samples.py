"""Samples of a model's responses for report and evaluation: by verdict, best, worst, answers."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from rl_core.envs.rows import question_in, shown_truth
from rl_core.evaluation.summary import EvaluationSummary, accuracy_by, rows_that_count, summarise
from rl_core.runs.rollout_log import in_turns
from rl_core.runs.run_folder import RunFolder
from rl_core.system.words import cut, in_one_line, printable, without_middle
from rl_core.types import Problem
from tasks.prefect_ui.artifacts import create_markdown_artifact, dialogue
from tasks.queries import sql

Row = dict[str, Any]

_LONGEST_SAMPLE = 4_000  # characters of a response, before and after its answer
_LONGEST_TRUTH = 80
_EXTREMES_QUERY = """
select step, prompt_index, verdict, score, answer, response, prompt, truth, advantage_mean
from rollouts
where step >= $from_step
order by {order}, hash(step, group_id, sample_index)
limit 2
"""
_CHANGES_QUERY = """
with answered as (
    select *, ground_truth as truth from evaluations
    where counts and coalesce(sample_index, 0) = 0 and model in ('base', $model)
),
changed as (
    select prompt_index, trained.verdict = 'correct' as is_won
    from answered as trained inner join answered as base using (prompt_index)
    where
        trained.model = $model and base.model = 'base'
        and (trained.verdict = 'correct') != (base.verdict = 'correct')
    qualify row_number() over (partition by is_won order by prompt_index) <= 2
)
select * from answered inner join changed using (prompt_index)
order by is_won desc, prompt_index, model != 'base'
"""
_TAGS = re.compile(r"<\|[^|<>]*\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|<bos>")
"""What chat templates put around a message."""
_BEST = "score desc, advantage_mean desc nulls last"
_WORST = "score asc, advantage_mean asc nulls last"
_IN_TERMINAL: Final = 3  # right answers shown, and as many wrong ones
IN_ARTIFACT: Final = 4
_MOST_CELLS: Final = 2_000  # of the picture, one per problem
_LONGEST_QUESTION: Final = 300
_LONGEST_LINE: Final = 60
_LONGEST_IN_ARTIFACT: Final = 1_500  # characters around the answer


@dataclass(frozen=True)
class Sample:
    """One response to read, cut in three around the answer."""

    step: int
    verdict: str
    score: float
    problem: str  # `19, 11, 9 -> 39`, or question and truth; empty without a truth
    prompt: str
    before: str
    answer: str
    after: str
    is_cut: bool
    tokens: int | None


@dataclass(frozen=True)
class Change:
    """A test problem that only one of base and trained model solved."""

    problem: str
    is_won: bool
    before: Sample
    after: Sample


def won_and_lost(run: RunFolder, model: str | None) -> list[Change]:
    """Returns two test problems that the model won over its base and two that it lost, if any."""
    rows = sql.run_query(
        _CHANGES_QUERY, {"model": model or ""}, root=run.root, run=run.run_id
    ).to_dicts()
    shown = [(_as_sample(row), row["is_won"]) for row in rows]
    pairs = zip(shown[::2], shown[1::2], strict=True)
    return [Change(after.problem, is_won, before, after) for (before, _), (after, is_won) in pairs]


def samples(run: RunFolder, *, from_step: int) -> list[Sample]:
    """Returns one rollout of each verdict, the most frequent verdict first."""
    counts = sql.run_query(
        "select verdict from rollouts where step >= $from_step "
        "group by verdict order by verdict != 'correct', count(*) desc, verdict",
        {"from_step": from_step},
        root=run.root,
        run=run.run_id,
    )
    ask = partial(sql.ask, "samples_of_a_verdict", root=run.root, run=run.run_id)
    arguments = {"from_step": from_step, "limit": 1}
    return [
        _as_sample(row)
        for verdict in counts["verdict"]
        for row in ask(arguments | {"verdict": verdict}).to_dicts()
    ]


def best_and_worst(run: RunFolder, *, from_step: int) -> tuple[list[Sample], list[Sample]]:
    """Returns the rollouts of the highest and of the lowest score; equal ones by advantage."""

    def rollouts_by(order: str) -> list[Sample]:
        query = _EXTREMES_QUERY.format(order=order)
        rows = sql.run_query(query, {"from_step": from_step}, root=run.root, run=run.run_id)
        return [_as_sample(row) for row in rows.to_dicts()]

    best = rollouts_by(_BEST)
    return best, [sample for sample in rollouts_by(_WORST) if sample not in best]


def problem_in_words(ground_truth: str | None, prompt: str) -> str:
    """Returns a problem's question and truth in a line; empty if a row has no truth."""
    with suppress(ValueError):
        truth = json.loads(ground_truth or "")
        return _numbers_in(truth) or (
            f"{_line(_asked_in(prompt), _LONGEST_QUESTION)} -> "
            f"{cut(in_one_line(shown_truth(truth)), _LONGEST_TRUTH)}"
        )
    return ""


def _asked_in(prompt: str) -> str:
    """Returns the last message of a prompt with chat tags, without the name of its role."""
    messages = [message.strip() for message in _TAGS.split(prompt)]
    texts = [text for text in messages if text not in ("", "assistant", "model")]
    role, line_end, text = (texts[-1] if texts else "").partition("\n")
    return question_in(text if line_end and role in ("user", "human") else "\n".join(texts[-1:]))


def _as_sample(row: Row) -> Sample:
    """Returns a rollout or an evaluated response as a sample."""
    response = row["response"] or ""
    before, answer, after = cut_around_answer(response, row["answer"])
    return Sample(
        step=row["step"],
        verdict=row["verdict"],
        score=row["score"],
        problem=problem_in_words(row.get("truth"), row["prompt"] or ""),
        prompt=row["prompt"] or "",
        before=before,
        answer=answer,
        after=after,
        is_cut=len(before) + len(answer) + len(after) < len(response),
        tokens=row.get("response_tokens"),
    )


def cut_around_answer(response: str, answer: str | None) -> tuple[str, str, str]:
    """Returns what comes before the scored answer, the answer, and what comes after it.

    The answer stands in the last answer tag, else where its text occurs last; else all is `before`.
    """
    closing = response.rfind("</answer>")
    opening = response.rfind("<answer>", 0, max(closing, 0))
    last = response.rfind(answer) if answer else -1
    start = end = len(response)
    if answer and opening >= 0:
        start = opening + len("<answer>")
        end = closing
    elif answer and last >= 0:
        start = last
        end = last + len(answer)
    before = response[max(0, start - _LONGEST_SAMPLE) : start]
    return before, response[start:end], response[end : end + _LONGEST_SAMPLE]


def from_the_end(verdicts: pl.DataFrame) -> int:
    """Returns the first step of the last fifth of those with rollouts."""
    last = int(verdicts["step"].max() or 0)  # type: ignore[arg-type]  # an int column, or empty
    return last - max(last // 5, 1) + 1


@dataclass(frozen=True)
class Answers:
    """A model's first answers to all problems: all verdicts, and some answers in full."""

    model: str
    run_id: str  # empty if the model is of no run
    evaluation: str
    summary: EvaluationSummary
    verdicts: Mapping[str, int]  # the most frequent first
    cells: tuple[tuple[int, str], ...]  # problem and verdict of each, `_MOST_CELLS` at most
    right: tuple[Sample, ...]
    wrong: tuple[Sample, ...]  # one of each verdict in turn

    @property
    def name(self) -> str:
        """`RUN/step_000100`, or the name of a model of no run."""
        return f"{self.run_id}/{self.model}" if self.run_id else self.model

    @property
    def accuracy(self) -> str:
        """What the accuracy is of, as text."""
        return accuracy_by(self.summary.decoding)

    @property
    def num_right(self) -> int:
        """Problems whose first answer is right."""
        return self.verdicts.get("correct", 0)


def choose_answers(rows: Sequence[Row], problems: Sequence[Problem], *, most: int) -> Answers:
    """Returns some of a model's right and wrong answers, `most` each, the same ones each time."""
    by_index = {problem.index: problem for problem in problems}
    first = [dict(row) for row in rows_that_count(rows) if not row["sample_index"]]

    def shown(chosen: Sequence[Row]) -> tuple[Sample, ...]:
        rows = in_turns(chosen, most)
        return tuple(replace(_as_sample(row), problem=_in_words(row, by_index)) for row in rows)

    return Answers(
        model=first[0]["model"],
        run_id=first[0]["run_id"],
        evaluation=first[0]["evaluation"],
        summary=summarise(rows),
        verdicts=dict(Counter(row["verdict"] for row in first).most_common()),
        cells=tuple((row["prompt_index"], row["verdict"]) for row in first[:_MOST_CELLS]),
        right=shown([row for row in first if row["verdict"] == "correct"]),
        wrong=shown([row for row in first if row["verdict"] != "correct"]),
    )


def as_table(answers: Answers) -> list[dict[str, str]]:
    """Returns a few answers for a terminal, without control characters, right ones first."""
    return [
        {
            "verdict": one.verdict,
            "problem": printable(_line(one.problem)),
            "answer": printable(
                _line(one.answer.strip()) or f"... {in_one_line(one.before)[-_LONGEST_LINE:]}"
            ),
            "tokens": str(one.tokens),
        }
        for one in (*answers.right[:_IN_TERMINAL], *answers.wrong[:_IN_TERMINAL])
    ]


def show_answers(several: Sequence[Answers], pages: Sequence[Path]) -> None:
    """Shows some answers of each model in the Prefect UI."""
    create_markdown_artifact(
        as_markdown(several, pages), key="answers", description="Some right and wrong answers."
    )


def as_markdown(several: Sequence[Answers], pages: Sequence[Path]) -> str:
    """Returns some answers and the pages' paths, as markdown that no text of a model can break."""
    parts = []
    for one in several:
        parts.append(f"## {one.name}: {one.num_right} of {one.summary.num_problems} right")
        parts += [
            dialogue(
                f"{some.verdict}, {some.tokens} tokens",
                some.problem,
                some.before[-_LONGEST_IN_ARTIFACT:]
                + some.answer
                + some.after[:_LONGEST_IN_ARTIFACT],
            )
            for some in (*one.right[:IN_ARTIFACT], *one.wrong[:IN_ARTIFACT])
        ]
    parts += [f"More of them: {page.resolve()}" for page in pages]
    return "\n\n".join(parts) + "\n"


def _in_words(row: Row, by_index: Mapping[int, Problem]) -> str:
    problem = by_index.get(row["prompt_index"])
    if problem is None:
        return f"problem {row['prompt_index']}"
    if (numbers := _numbers_in(problem.ground_truth)) is not None:
        return numbers
    question = _line(question_in(problem.messages[-1]["content"]), _LONGEST_QUESTION)
    return f"{question} -> {_line(shown_truth(problem.ground_truth), _LONGEST_QUESTION)}"


def _numbers_in(truth: Any) -> str | None:
    with suppress(TypeError, KeyError):
        return f"{', '.join(map(str, truth['numbers']))} -> {truth['target']}"
    return None


def _line(text: str, longest: int = _LONGEST_LINE) -> str:
    return without_middle(in_one_line(text), longest)
