"""Summary of evaluation rows: one model's numbers with intervals, and two models compared in pairs.

Shares, pass@k and maj@k have Wilson intervals, which hold at 0 and 1 too, a gain has Tango's, and
other means have bootstrap intervals over problems. `sql/macros.sql` has the same for SQL.

The responses that count are the greedy ones; of a model that has none (`decoding=sampled`), all.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from rl_core.evaluation.statistics import (
    Estimate,
    chance,
    majority_credit,
    means,
    paired,
    pass_at_k,
    share,
)

UNREADABLE_VERDICTS = frozenset({"no_answer", "bad_syntax", "too_long"})
"""Verdicts of responses without an answer that can be read; all others have the right format."""
ALPHA: Final = 0.05
"""Chance of a verdict other than "cannot tell" if two models are alike."""

Row = Mapping[str, Any]
_OF_A_PROBLEM: Final = ("prompt_index", "prompt", "ground_truth")


@dataclass(frozen=True)
class Group:
    """Accuracy on the problems that have something in common."""

    label: str
    num_problems: int
    accuracy: Estimate


@dataclass(frozen=True)
class EvaluationSummary:
    """Summary of one model's rows: of the responses that count, except pass@k and maj@k."""

    model: str
    step: int
    num_problems: int
    accuracy: Estimate
    """Share of responses that are `correct` by the env's own settings."""
    accuracy_strict: Estimate
    """The same with the answer in the strictest place only."""
    accuracy_lenient: Estimate
    """The same with the answer in any place."""
    score: Estimate
    """Mean score, format credit included."""
    format_share: Estimate
    """Share of responses with an answer that can be read, right or wrong."""
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
    num_samples: int = 1
    """Responses per problem that count."""
    is_greedy: bool = True

    @property
    def decoding(self) -> str:
        """`greedy`, or `mean of 4 samples`."""
        return "greedy" if self.is_greedy else f"mean of {self.num_samples} samples"

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups of problems."""
        return self.by_data_source + self.by_num_operands + self.by_difficulty


@dataclass(frozen=True)
class Comparison:
    """Two models' accuracy on the same problems."""

    num_problems: int
    won: int
    """Problems that the model solves and the other does not, or solves more often."""
    lost: int
    """Problems that the other solves and the model does not, or solves more often."""
    p_value: float
    """Of McNemar's exact test, or of the sign-flip test of means."""
    gain: Estimate
    """Accuracy of the model minus that of the other."""
    num_samples: int = 1

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
    def gain_in_words(self) -> str:
        """`gain +0.129 (95% interval +0.022 to +0.243)`, as in the report."""
        gain = self.gain
        return f"gain {gain.value:+.3f} (95% interval {gain.low:+.3f} to {gain.high:+.3f})"

    @property
    def _numbers(self) -> str:
        means = f", means of {self.num_samples} samples" if self.num_samples > 1 else ""
        return (
            f"p = {self.p_value:.2g}, {self.won} problems won and {self.lost} lost of "
            f"{self.num_problems}{means}"
        )


def summarise(rows: Sequence[Row]) -> EvaluationSummary:
    """Returns what the complete rows of one model say; ValueError if there are none."""
    counted = rows_that_count(rows)
    if not counted:
        raise ValueError("there are no evaluation rows: nothing to summarise")
    num_samples = len(counted) // len(_by_problem(counted))
    samples = _by_problem([row for row in rows if row["mode"] == "sampled"])
    score, tokens = means(
        [
            np.mean([(row["score"], row["response_tokens"]) for row in of_one], axis=0)
            for of_one in _by_problem(counted)
        ]
    )
    by_source = _groups(
        counted, lambda row: row["data_source"], lambda group: group[0]["data_source"]
    )
    return EvaluationSummary(
        model=counted[0]["model"],
        step=counted[0]["step"],
        num_problems=len(counted) // num_samples,
        accuracy=_share(counted, _is_correct()),
        accuracy_strict=_share(counted, _is_correct("verdict_strict")),
        accuracy_lenient=_share(counted, _is_correct("verdict_lenient")),
        score=score,
        format_share=_share(counted, lambda row: row["verdict"] not in UNREADABLE_VERDICTS),
        response_tokens=tokens,
        pass_at_k=_pass_at_k(samples),
        majority_at_k=_majority_at_k(samples),
        by_num_operands=_groups(
            [row for row in counted if row["num_operands"] is not None],
            lambda row: row["num_operands"],
            lambda group: f"{group[0]['num_operands']} numbers",
        ),
        by_difficulty=_groups(
            [row for row in counted if row["num_solutions"]],
            lambda row: row["num_solutions"].bit_length(),
            _range,
        ),
        by_data_source=by_source if len(by_source) > 1 else (),
        num_samples=num_samples,
        is_greedy=counted[0]["mode"] == "greedy",
    )


def accuracy_by(decoding: str) -> str:
    """Returns what an accuracy is of: `greedy accuracy`, or `accuracy (mean of 4 samples)`."""
    return "greedy accuracy" if decoding == "greedy" else f"accuracy ({decoding})"


def rows_that_count(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows whose responses count for accuracy: greedy ones, else all samples."""
    greedy = [row for row in rows if row["mode"] == "greedy"]
    return greedy or [row for row in rows if row["mode"] == "sampled"]


def compare(rows: Sequence[Row], other: Sequence[Row]) -> Comparison:
    """Compares two models; ValueError if they were not asked the same, in the same way."""
    counted = [rows_that_count(rows), rows_that_count(other)]
    first, second = (
        {
            tuple(of_one[0][name] for name in _OF_A_PROBLEM): _num_correct(of_one)
            for of_one in _by_problem(each)
        }
        for each in counted
    )
    if first.keys() != second.keys():
        differing = len(first.keys() ^ second.keys())
        raise ValueError(
            f"the models were not asked the same problems: {len(first)} and {len(second)}, "
            f"{differing} of them only one of the two; evaluate both again"
        )
    ways = {(each[0]["mode"], len(each), each[0].get("evaluation")) for each in counted}
    if len(ways) > 1:
        raise ValueError(
            "the models were asked in different ways, by other settings or another decoding: "
            "evaluate both again with the same evaluation.*"
        )
    num_samples = len(counted[0]) // len(first)
    of_both = paired([first[key] for key in first], [second[key] for key in first], num_samples)
    return Comparison(num_problems=len(first), num_samples=num_samples, **vars(of_both))


def _by_problem(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows of each problem, which have as many each."""
    return list(_grouped(rows, lambda row: row["prompt_index"]).values())


def _grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _share(rows: Sequence[Row], counts: Callable[[Row], bool]) -> Estimate:
    """Returns the share of rows that count; its interval is of problems, not of their samples."""
    problems = _by_problem(rows)
    if len(problems) == len(rows):
        return share(sum(map(counts, rows)), len(rows))
    shares = [sum(map(counts, of_one)) / len(of_one) for of_one in problems]
    return chance(shares, min(map(len, problems)))


def _is_correct(column: str = "verdict") -> Callable[[Row], bool]:
    return lambda row: row[column] == "correct"


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
        votes = (row["value"] for row in rows if row["verdict"] != "correct")
        wrong = Counter(value for value in votes if value is not None)
        won.append(majority_credit(_num_correct(rows), wrong.values()))
    return {min(map(len, samples)): chance(won, 1)}


def _num_correct(rows: Sequence[Row]) -> int:
    return sum(row["verdict"] == "correct" for row in rows)


def _groups(
    rows: Sequence[Row], key: Callable[[Row], Any], label: Callable[[Sequence[Row]], str]
) -> tuple[Group, ...]:
    return tuple(
        Group(label(some), len(_by_problem(some)), _share(some, _is_correct()))
        for _, some in sorted(_grouped(rows, key).items())
    )


def _range(rows: Sequence[Row]) -> str:
    low = 1 << (rows[0]["num_solutions"].bit_length() - 1)
    return "1 solution" if low == 1 else f"{low}-{2 * low - 1} solutions"
