"""Held-out problems: one protocol before and after, scored again, and absent from training."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.summary import rows_that_count
from rl_core.runs.receipt import AuditLine
from rl_core.runs.rollout_log import step_files
from rl_core.runs.run_folder import FROM_PYTHON
from rl_core.system.words import in_one_line
from rl_core.types import Problem
from tasks.audit.facts import Facts, line
from tasks.audit.rewards import Row, Scorers

_ASKED: Final = ("mode", "prompt_index", "sample_index", "prompt", "ground_truth", "evaluation")
_SAME: Final = 1e-6


def read_evaluations(facts: Facts) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Returns the rows of the run's own evaluation by model, and what cannot be read."""
    folder = facts.run.path / "eval"
    files = sorted(folder.glob("[!.]*.parquet")) if not folder.is_symlink() else ()
    return _rows_of(facts, files)


def _rows_of(
    facts: Facts, files: Iterable[Path]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Returns the rows of each file by its name, and what cannot be read."""
    rows: dict[str, list[dict[str, Any]]] = {}
    wrong = []
    for file in files:
        try:
            rows[file.stem] = read_rows(file, below=facts.run.path)
        except (OSError, ValueError) as error:
            wrong.append(in_one_line(error))
    return rows, wrong


def check_evaluations(
    facts: Facts, evaluations: Mapping[str, Sequence[Row]], wrong: list[str]
) -> list[AuditLine]:
    """Compares what base and trained model were asked, their rewards, and the record."""
    subject = "evaluations"
    if not evaluations and not wrong:
        record = facts.run.read()
        if record.accuracy_after is None or record.preset == FROM_PYTHON:  # those are of its tests
            return [AuditLine(subject, "note", "none: the run was not evaluated")]
        return [line(subject, "", unknown="run.json has accuracies, and eval/ has no answers")]
    asked_of = {
        name: {tuple(row[key] for key in _ASKED) for row in rows}
        for name, rows in evaluations.items()
    }
    first, *others = asked_of
    for name in others:
        if differing := len(asked_of[first] ^ asked_of[name]):
            wrong.append(f"{first} and {name} were not asked the same: {differing} rows differ")
    wrong += [
        f"{name}: {len(rows) - len(asked_of[name])} answers are there twice"
        for name, rows in evaluations.items()
        if len(rows) > len(asked_of[name])
    ]
    wrong += _other_accuracies(facts, evaluations)
    protocol = next((str(row["evaluation"]) for rows in evaluations.values() for row in rows), "")
    words = (
        f"{', '.join(evaluations)} answered the same problems, prompts and samples ({protocol}: "
        "the name is a digest of problems, rules and decoding)"
    )
    with Scorers.started(facts, "test") as scorers:
        differing_rewards = [
            f"{name}: {text}"
            for name, rows in evaluations.items()
            for _, text in scorers.differences(rows, lambda step: facts.settings[-1])
        ]
    again = f"{scorers.num_scored:,} answers get the logged verdict, value and score again"
    unknown = scorers.unknown.get("rewards")
    return [
        line(subject, words, wrong),
        line(f"rewards of {subject}", again, differing_rewards, unknown),
    ]


def _other_accuracies(facts: Facts, evaluations: Mapping[str, Sequence[Row]]) -> list[str]:
    record = facts.run.read()
    wrong = []
    trained = [name for name in evaluations if name != "base"][-1:]
    recorded = {"base": record.accuracy_before, **dict.fromkeys(trained, record.accuracy_after)}
    for name, accuracy in recorded.items():
        rows = rows_that_count(evaluations.get(name, ()))
        if accuracy is not None and rows:
            counted = fmean(row["verdict"] == "correct" for row in rows)
            if not isclose(accuracy, counted, abs_tol=_SAME):
                words = f"run.json has accuracy {accuracy:.4g} of {name}, its rows {counted:.4g}"
                wrong.append(words)
    return wrong


def check_tests(facts: Facts) -> AuditLine:
    """Compares the problems of each test during training: the same ones in the same way."""
    keys = ("mode", "prompt_index", "prompt", "ground_truth")
    tests, wrong = _rows_of(facts, (file for _, file in step_files(facts.run.path / "held_out")))
    problems = {name: {tuple(map(row.get, keys)) for row in rows} for name, rows in tests.items()}
    first = next(iter(problems), "")
    wrong += [
        f"{name} asks other problems than {first}"
        for name in problems
        if problems[name] != problems[first]
    ]
    return line(
        "tests",
        f"{len(problems)} tests during training ask the same problems in the same way",
        wrong,
        None if problems else "no test was kept",
    )


def check_absent(
    facts: Facts, prompts: Mapping[str, int], evaluations: Iterable[Sequence[Row]]
) -> AuditLine:
    """Looks for test problems in training: by their prompts, and numbers in any order."""
    tested = {str(row["prompt"]): row["prompt_index"] for rows in evaluations for row in rows}
    wrong = [
        f"test problem {tested[prompt]} was trained on in step {prompts[prompt]}"
        for prompt in tested.keys() & prompts.keys()
    ]
    if isinstance(facts.problems, str):
        is_there = facts.data is not None and (facts.data / "test.parquet").exists()
        return line("held out", "", wrong + [facts.problems] * is_there, facts.problems)
    train = {_key(problem): problem.index for problem in facts.problems["train"]}
    test = facts.problems["test"]
    wrong += [
        f"test problem {problem.index} is training problem {train[_key(problem)]}"
        for problem in test
        if _key(problem) in train
    ]
    return line(
        "held out",
        f"none of {len(test):,} test problems is among {len(train):,} training problems or "
        f"{len(prompts):,} training prompts; both files hold the rows that were written (sha256)",
        wrong,
    )


def _key(problem: Problem) -> str:
    truth = problem.ground_truth
    if isinstance(truth, Mapping) and {"numbers", "target"} <= truth.keys():
        numbers = truth["numbers"] if isinstance(truth["numbers"], list) else []
        return json.dumps([sorted(map(str, numbers)), truth["target"]])
    return json.dumps(problem.messages)
