"""Held-out problems: one protocol before and after, scored again, and absent from training."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Any, Final

from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.summary import rows_that_count
from rl_core.runs.receipt import AuditLine
from rl_core.runs.rollout_log import step_files
from rl_core.system.words import in_one_line
from rl_core.types import Problem
from tasks.audit.facts import Facts, line
from tasks.audit.rewards import Scorers

_ASKED: Final = ("mode", "prompt_index", "sample_index", "prompt", "ground_truth", "evaluation")
_SAME: Final = 1e-6
Row = Mapping[str, Any]


def read_evaluations(facts: Facts) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Returns the rows of the run's own evaluation by model, and what cannot be read."""
    rows: dict[str, list[dict[str, Any]]] = {}
    wrong = []
    folder = facts.run.path / "eval"
    for file in sorted(folder.glob("[!.]*.parquet")) if not folder.is_symlink() else ():
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
        return [line(subject, "", unknown="the run was not evaluated")]
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
    rewards = line(
        f"rewards of {subject}", again, differing_rewards, scorers.unknown.get("rewards")
    )
    return [line(subject, words, wrong), rewards]


def _other_accuracies(facts: Facts, evaluations: Mapping[str, Sequence[Row]]) -> list[str]:
    record = facts.run.read()
    wrong = []
    trained = [name for name in evaluations if name != "base"][-1:]
    recorded = {"base": record.accuracy_before, **dict.fromkeys(trained, record.accuracy_after)}
    for name, accuracy in recorded.items():
        rows = rows_that_count(evaluations.get(name, ()))
        if accuracy is None or not rows:
            continue
        counted = sum(row["verdict"] == "correct" for row in rows) / len(rows)
        if not isclose(accuracy, counted, abs_tol=_SAME):
            wrong.append(f"run.json has accuracy {accuracy:.4g} of {name}, its rows {counted:.4g}")
    return wrong


def check_tests(facts: Facts) -> AuditLine:
    """Compares the problems of each test during training: the same ones in the same way."""
    wrong = []
    seen: dict[str, set[tuple[Any, ...]]] = {}
    keys = ("mode", "prompt_index", "prompt", "ground_truth")
    for _, file in step_files(facts.run.path / "held_out"):
        try:
            rows = read_rows(file, below=facts.run.path)
        except (OSError, ValueError) as error:
            wrong.append(in_one_line(error))
            continue
        seen[file.stem] = {tuple(row[key] for key in keys) for row in rows}
    first = next(iter(seen), None)
    wrong += [
        f"{name} asks other problems than {first}"
        for name in seen
        if seen[name] != seen[first or name]
    ]
    words = f"{len(seen)} tests during training ask the same problems in the same way"
    return line("tests", words, wrong, None if seen else "no test was kept")


def check_absent(
    facts: Facts, prompts: Mapping[str, int], evaluations: Iterable[Sequence[Row]]
) -> AuditLine:
    """Looks for test problems in training: by their prompts, and numbers in any order."""
    wrong = []
    tested = {str(row["prompt"]): row["prompt_index"] for rows in evaluations for row in rows}
    wrong += [
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
    words = (
        f"none of {len(test):,} test problems is among {len(train):,} training problems or "
        f"{len(prompts):,} training prompts; both files hold the rows that were written (sha256)"
    )
    return line("held out", words, wrong)


def _key(problem: Problem) -> str:
    truth = problem.ground_truth
    if isinstance(truth, Mapping) and {"numbers", "target"} <= truth.keys():
        truth = {"numbers": sorted(truth["numbers"]), "target": truth["target"]}
        return json.dumps(truth, sort_keys=True)
    return json.dumps(problem.messages)


def names_in(evaluations: Iterable[Sequence[Row]]) -> set[str]:
    """Returns the names of the runs that rows belong to."""
    return {str(row["run_id"]) for rows in evaluations for row in rows}
