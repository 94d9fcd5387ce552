"""Summary of evaluation rows: one model's numbers with intervals, and two models compared in pairs.

Shares, pass@k and maj@k have Wilson intervals, which hold at 0 and 1 too, a gain has Tango's, and
other means have bootstrap intervals over problems. `sql/macros.sql` has the same for SQL.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rl_core.evaluation.statistics import (
    Estimate,
    chance,
    gain_interval,
    majority_credit,
    mcnemar_p,
    means,
    pass_at_k,
    share,
)

UNREADABLE_VERDICTS = frozenset({"no_answer", "bad_syntax", "too_long"})
"""Verdicts of responses without an answer that can be read; all others have the right format."""
ALPHA: Final = 0.05
"""Chance of a verdict other than "cannot tell" if two models are alike."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """Greedy accuracy on the problems that have something in common."""

    label: str
    num_problems: int
    accuracy: Estimate


@dataclass(frozen=True)
class EvaluationSummary:
    """Summary of one model's rows: of its greedy responses, except pass@k and maj@k."""

    model: str
    step: int
    num_problems: int
    accuracy: Estimate
    """Share of problems whose greedy response is `correct` by the env's own settings."""
    accuracy_strict: Estimate
    """The same with the answer in the strictest place only."""
    accuracy_lenient: Estimate
    """The same with the answer in any place."""
    score: Estimate
    """Mean score, format credit included."""
    format_share: Estimate
    """Share of greedy responses with an answer that can be read, right or wrong."""
    response_tokens: Estimate
    pass_at_k: Mapping[int, Estimate]
    """By k = 1, 2, 3, ... up to the samples per problem."""
    majority_at_k: Mapping[int, Estimate]
    """By k, which is all samples of a problem: they vote by the value of their answers."""
    by_num_operands: tuple[Group, ...]
    """Countdown: `3 numbers`, `4 numbers`, ..."""
    by_difficulty: tuple[Group, ...]
    """Ranges of the number of solutions that double (1, 2-3, 4-7, ...), fewest (the hardest) first;
    empty if unknown."""
    by_data_source: tuple[Group, ...] = ()
    """Empty if all problems have the same."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups of problems."""
        return self.by_data_source + self.by_num_operands + self.by_difficulty


@dataclass(frozen=True)
class Comparison:
    """A model beside another on the same problems, by greedy accuracy."""

    num_problems: int
    won: int
    """Problems that the model solves and the other does not."""
    lost: int
    """Problems that the other solves and the model does not."""
    p_value: float
    """Of McNemar's exact test."""

    @property
    def verdict(self) -> Literal["better", "worse", "cannot tell"]:
        """The test's verdict on the model, at `ALPHA`."""
        if self.p_value >= ALPHA:
            return "cannot tell"
        return "better" if self.won > self.lost else "worse"

    def __str__(self) -> str:
        """`better (p = 0.039, 10 problems won and 2 lost of 62)`."""
        return f"{self.verdict} ({self._numbers})"

    def against(self, other: str) -> str:
        """Returns `better than OTHER (p = 0.039, ...)`, worse than it, or cannot tell from it."""
        than = "from" if self.verdict == "cannot tell" else "than"
        return f"{self.verdict} {than} {other} ({self._numbers})"

    @property
    def gain(self) -> Estimate:
        """Accuracy of the model minus that of the other."""
        low, high = gain_interval(self.won, self.lost, self.num_problems)
        return Estimate((self.won - self.lost) / self.num_problems, low, high)

    @property
    def gain_in_words(self) -> str:
        """`gain +0.129 (95% interval +0.022 to +0.243)`, as in the report."""
        gain = self.gain
        return f"gain {gain.value:+.3f} (95% interval {gain.low:+.3f} to {gain.high:+.3f})"

    @property
    def _numbers(self) -> str:
        return (
            f"p = {self.p_value:.2g}, {self.won} problems won and {self.lost} lost of "
            f"{self.num_problems}"
        )


def summarise(rows: Sequence[Row]) -> EvaluationSummary:
    """Returns what the complete rows of one model say; ValueError if there are no greedy rows."""
    greedy = [row for row in rows if row["mode"] == "greedy"]
    if not greedy:
        raise ValueError(f"no greedy row among {len(rows)} evaluation rows: nothing to summarise")
    samples: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["mode"] == "sampled":
            samples[row["prompt_index"]].append(row)
    num_readable = sum(row["verdict"] not in UNREADABLE_VERDICTS for row in greedy)
    score, tokens = means([(row["score"], row["response_tokens"]) for row in greedy])
    known = [row for row in greedy if row["num_solutions"]]
    by_source = _groups(greedy, lambda row: row["data_source"], lambda own: own[0]["data_source"])
    return EvaluationSummary(
        model=greedy[0]["model"],
        step=greedy[0]["step"],
        num_problems=len(greedy),
        accuracy=_accuracy(greedy),
        accuracy_strict=_accuracy(greedy, "verdict_strict"),
        accuracy_lenient=_accuracy(greedy, "verdict_lenient"),
        score=score,
        format_share=share(num_readable, len(greedy)),
        response_tokens=tokens,
        pass_at_k=_pass_at_k(samples.values()),
        majority_at_k=_majority_at_k(samples.values()),
        by_num_operands=_groups(
            [row for row in greedy if row["num_operands"] is not None],
            lambda row: row["num_operands"],
            lambda own: f"{own[0]['num_operands']} numbers",
        ),
        by_difficulty=_groups(known, lambda row: row["num_solutions"].bit_length(), _range),
        by_data_source=by_source if len(by_source) > 1 else (),
    )


def compare(rows: Sequence[Row], other: Sequence[Row]) -> Comparison:
    """Compares two models by their greedy responses; ValueError if their problems differ."""
    first, second = _greedy_by_problem(rows), _greedy_by_problem(other)
    if first.keys() != second.keys():
        differing = len(first.keys() ^ second.keys())
        raise ValueError(
            f"the models were not asked the same problems: {len(first)} and {len(second)}, "
            f"{differing} of them only one of the two; evaluate both again"
        )
    solved = Counter((first[key], second[key]) for key in first)
    won, lost = solved[True, False], solved[False, True]
    return Comparison(len(first), won, lost, mcnemar_p(won, lost))


def _greedy_by_problem(rows: Sequence[Row]) -> dict[tuple[int, str, str], bool]:
    return {
        (row["prompt_index"], row["prompt"], row["ground_truth"]): row["verdict"] == "correct"
        for row in rows
        if row["mode"] == "greedy"
    }


def _accuracy(rows: Sequence[Row], column: str = "verdict") -> Estimate:
    return share(_num_correct(rows, column), len(rows))


def _pass_at_k(samples: Collection[Sequence[Row]]) -> dict[int, Estimate]:
    """Returns the mean over problems for k = 1, 2, 3, ... up to the samples that every one has."""
    if not samples:
        return {}
    ks = range(1, min(map(len, samples)) + 1)
    correct = [(len(rows), _num_correct(rows)) for rows in samples]
    return {k: chance([pass_at_k(*one, k) for one in correct], max(ks)) for k in ks}


def _majority_at_k(samples: Collection[Sequence[Row]]) -> dict[int, Estimate]:
    """Returns the mean credit of the vote; all correct samples vote for one value."""
    if not samples:
        return {}
    won = []
    for rows in samples:
        wrong = Counter(row["value"] for row in rows if row["verdict"] != "correct")
        wrong.pop(None, None)
        won.append(majority_credit(_num_correct(rows), wrong.values()))
    return {min(map(len, samples)): chance(won, 1)}


def _num_correct(rows: Sequence[Row], column: str = "verdict") -> int:
    return sum(row[column] == "correct" for row in rows)


def _groups(
    rows: Sequence[Row], key: Callable[[Row], Any], label: Callable[[Sequence[Row]], str]
) -> tuple[Group, ...]:
    groups: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return tuple(
        Group(label(found), len(found), _accuracy(found)) for _, found in sorted(groups.items())
    )


def _range(rows: Sequence[Row]) -> str:
    low = 1 << (rows[0]["num_solutions"].bit_length() - 1)
    return "1 solution" if low == 1 else f"{low}-{2 * low - 1} solutions"
