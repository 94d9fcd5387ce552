"""The steps of a run: metrics and rollouts without gap or double, and what each rollout says."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from rl_core.config.run import RunConfig
from rl_core.data.sampling import epoch_order
from rl_core.runs.metrics_log import MOST_LOG_BYTES
from rl_core.runs.receipt import AuditLine
from rl_core.runs.rollout_log import step_files
from rl_core.schema import ROLLOUTS
from rl_core.system.plain_files import read_plain
from rl_core.system.plain_parquet import check_columns, open_parquet
from rl_core.system.words import counted, in_one_line
from tasks.audit.facts import OLDER, Facts, file_digest, line, ranges
from tasks.audit.rewards import Row, Scorers
from tasks.queries.run_tables import reading_rollouts

_BATCH_ROWS: Final = 8_192
_MOST_ROWS: Final = 4_000_000
"""Of a file: more is no step's."""
_SAME: Final = 1e-6


@dataclass
class Step:
    """What the rollouts of one step add up to."""

    num_rows: int = 0
    num_correct: int = 0
    reward: float = 0.0
    epoch: int = 0
    problems: list[int] = field(default_factory=list)
    """Of its groups, in their order."""


@dataclass
class Rollouts:
    """What all rollouts add up to, and what is wrong with them, by subject."""

    steps: dict[int, Step] = field(default_factory=lambda: defaultdict(Step))
    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unknown: dict[str, str] = field(default_factory=dict)
    run_ids: set[str] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    """How many updates made the policies that sampled."""
    prompts: dict[str, int] = field(default_factory=dict)
    """Each with a step in which it was asked."""
    num_scored: int = 0
    num_noted: int = 0
    num_bytes: int = 0
    most_bytes: int = 0

    @property
    def num_rows(self) -> int:
        """How many rollouts there are."""
        return sum(step.num_rows for step in self.steps.values())


def read_rollouts(facts: Facts) -> Rollouts:
    """Reads all rollouts of a run once."""
    rollouts = Rollouts()
    noted = {note.step: note.rollouts for note in facts.notes if note.rollouts}
    with reading_rollouts([facts.run.path]), Scorers.started(facts) as scorers:
        for last_step, path in step_files(facts.run.path / "rollouts"):
            try:
                _read_file(rollouts, facts, scorers, path, last_step)
                if last_step in noted:
                    rollouts.num_noted += 1
                    if file_digest(path, facts.run.path) != noted[last_step]:
                        raise ValueError(f"{path.name} is not the file that was written (sha256)")
            except (OSError, ValueError) as error:
                rollouts.wrong["rollouts"].append(in_one_line(error))
        rollouts.unknown |= scorers.unknown
    return rollouts


def _read_file(
    rollouts: Rollouts, facts: Facts, scorers: Scorers, path: Path, last_step: int
) -> None:
    is_joined = path.stem.startswith("steps_")  # as older versions did
    with open_parquet(path, below=facts.run.path) as stored:
        check_columns(path, stored, ROLLOUTS)
        if stored.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{path.name} has {stored.metadata.num_rows:,} rows: no step has")
        size = path.lstat().st_size
        rollouts.num_bytes += size
        rollouts.most_bytes = max(rollouts.most_bytes, size)
        for rows in _batches(stored):
            steps = {row["step"] for row in rows}
            if None in steps or (not is_joined and steps != {last_step}):
                others = ranges(step for step in steps if step not in (None, last_step))
                raise ValueError(f"{path.name} holds rows of step {others or 'nothing'}")
            for row in rows:
                _add(rollouts, facts, row)
            for step, words in scorers.differences(rows, facts.of_step):
                rollouts.wrong["rewards"].append(f"step {step}: {words}")
    rollouts.num_scored = scorers.num_scored


def _batches(stored: pq.ParquetFile) -> Iterator[list[dict[str, Any]]]:
    names = [name for name in ROLLOUTS.names if name in stored.schema_arrow.names]
    absent = dict.fromkeys(name for name in ROLLOUTS.names if name not in names)
    for batch in stored.iter_batches(_BATCH_ROWS, columns=names):
        yield [absent | row for row in batch.to_pylist()]


def _add(rollouts: Rollouts, facts: Facts, row: Row) -> None:
    """Adds a rollout, and notes what is wrong with its place and its policy."""
    number = int(row["step"])
    version = -1 if row["policy_version"] is None else row["policy_version"]
    step = rollouts.steps[number]
    config = facts.of_step(number)
    if isinstance(config, RunConfig):
        group, sample = divmod(step.num_rows, config.algorithm.group_size)
        if (row["group_id"], row["sample_index"]) != (group, sample):
            rollouts.wrong["rollouts"].append(
                f"step {number}: row {step.num_rows + 1} is response {row['sample_index']} of "
                f"group {row['group_id']}, where response {sample} of group {group} must be"
            )
        age = number - 1 - version
        if not 0 <= age <= config.rollout.staleness:
            rollouts.wrong["staleness"].append(
                f"step {number}: tokens of policy {row['policy_version']}, {age} updates old"
            )
        if sample == 0:
            step.problems.append(-1 if row["prompt_index"] is None else row["prompt_index"])
        elif row["prompt_index"] != step.problems[-1]:
            rollouts.wrong["rollouts"].append(f"step {number}: two problems in group {group}")
    step.num_rows += 1
    step.num_correct += row["verdict"] == "correct"
    step.reward += (row["score"] or 0.0) + sum(t["reward"] or 0.0 for t in row["turns"] or ())
    step.epoch = row["epoch"] or 0
    rollouts.run_ids.add(str(row["run_id"]))
    rollouts.versions.add(version)
    rollouts.prompts.setdefault(str(row["prompt"]), number)


def read_metrics(facts: Facts) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rows of `metrics.jsonl`, and what is wrong with its lines."""
    file = facts.run.metrics.path
    rows = facts.run.metrics.read()
    try:
        content = read_plain(file, below=facts.run.path, most_bytes=MOST_LOG_BYTES)
    except (FileNotFoundError, ValueError) as error:
        return [], [in_one_line(error)]
    if not rows:
        return [], ["metrics.jsonl has no steps"]
    num_damaged = content.count(b"\n") - len(rows)
    wrong = [f"{num_damaged} lines cannot be read"] if num_damaged > 0 else []
    return rows, wrong + _gaps([row["step"] for row in rows], first=0)


def _gaps(steps: Sequence[int], *, first: int) -> list[str]:
    """Returns as a text which steps are missing, doubled or out of order."""
    wrong = []
    for before, after in pairwise([first - 1, *sorted(set(steps))]):
        if after > before + 1:
            last = f" to {after - 1}" if after > before + 2 else ""
            wrong.append(f"step {before + 1}{last} is missing")
    if doubled := [step for step, count in Counter(steps).items() if count > 1]:
        wrong.append(f"step {ranges(doubled)} is there twice")
    places = (after for before, after in pairwise(steps) if after < before)
    return wrong + [f"step {step} comes after a later one" for step in places]


def check_steps(facts: Facts, rows: Sequence[Row], wrong: list[str]) -> AuditLine:
    """Compares the steps of the metrics with the record and the seams of attempts."""
    steps = facts.run.read().steps
    last = rows[-1]["step"] if rows else 0
    if facts.run.read().status == "finished" and rows and last != steps:
        wrong = [*wrong, f"run.json has {steps} steps, metrics.jsonl {last}"]
    seams = [attempt.from_step for attempt in facts.attempts]
    begun = f"{len(seams)} attempts began after steps {', '.join(map(str, seams))}"
    words = f"metrics.jsonl has steps 0 to {last}, each once and in order"
    return line("metrics", f"{words}; {begun}" if len(seams) > 1 else words, wrong)


def check_rollouts(facts: Facts, rollouts: Rollouts, last: int) -> AuditLine:
    """Compares the rollouts with the steps and the settings: none is missing or double."""
    wrong = rollouts.wrong["rollouts"]
    steps = sorted(rollouts.steps)
    missing_first = steps[0] - 1 if steps else last
    quota = facts.settings[-1]
    is_over = isinstance(quota, RunConfig) and (
        rollouts.num_bytes + 2 * rollouts.most_bytes > quota.storage.rollout_quota_bytes
    )
    unknown = None
    if missing_first and steps and is_over:
        unknown = f"steps 1 to {missing_first} were deleted (storage.rollout_quota_bytes)"
    gaps = _gaps([*steps, last + 1], first=steps[0] if unknown else 1)
    wrong = [
        *wrong,
        *(f"no rollouts: {words}" for words in gaps),
        *(f"rollouts of step {step}, without metrics" for step in steps if step > last),
    ]
    for number, step in rollouts.steps.items():
        config = facts.of_step(number)
        if isinstance(config, RunConfig):
            size = config.data.train_batch_size * config.algorithm.group_size
            if step.num_rows != size:
                wrong.append(f"step {number}: {step.num_rows} rows instead of {size}")
    words = (
        f"{rollouts.num_rows:,} rows of steps {ranges(steps)}, each once; {rollouts.num_noted} of "
        f"{len(steps)} files by their sha256"
    )
    if not facts.notes:
        unknown = unknown or f"{words}: {OLDER}, so a change that agrees with all else is not seen"
    return line("rollouts", words, wrong, facts.unreadable or unknown)


def check_agreement(facts: Facts, rollouts: Rollouts, rows: Iterable[Row]) -> AuditLine:
    """Compares accuracy and mean reward in the metrics with those of the rollouts."""
    wrong = []
    compared = []
    replaced = []
    for row in rows:
        step = rollouts.steps.get(row["step"])
        if step is None or isinstance(facts.of_step(row["step"]), str):
            continue
        if row.get("group/replaced_frac"):
            replaced.append(row["step"])
            continue
        sums = {"reward/accuracy": step.num_correct, "critic/score/mean": step.reward}
        for name, total in sums.items():
            mean = total / step.num_rows
            logged = row.get(name)
            if not isinstance(logged, int | float) or not isclose(logged, mean, abs_tol=_SAME):
                wrong.append(
                    f"step {row['step']}: {name} is {logged} in the metrics, {mean:.6g} in the "
                    "rollouts"
                )
        compared.append(row["step"])
    words = f"accuracy and mean score of {counted(len(compared), 'step')} are as in the rollouts"
    if replaced and not wrong:
        words += f"; {len(replaced)} have groups of algorithm.resample_rounds: not compared"
        return AuditLine("metrics of rollouts", "note", words)
    unknown = facts.unreadable or (None if compared else "no step has both metrics and rollouts")
    return line("metrics of rollouts", words, wrong, unknown)


def check_staleness(facts: Facts, rollouts: Rollouts) -> AuditLine:
    """Compares the policy of each rollout with what `rollout.staleness` allows."""
    limits = {one.rollout.staleness for one in facts.settings if isinstance(one, RunConfig)}
    return line(
        "staleness",
        f"no token is more than {max(limits, default=0)} updates old, of {rollouts.num_rows:,} "
        "responses",
        rollouts.wrong["staleness"],
        facts.unreadable,
    )


def check_order(facts: Facts, rollouts: Rollouts, rows: Iterable[Row]) -> AuditLine:
    """Compares the problems of each step with the order that the seed gives: each once an epoch."""
    subject = "problems"
    if facts.unreadable:
        return line(subject, "", unknown=facts.unreadable)
    first = facts.of_step(1)
    assert isinstance(first, RunConfig)
    if first.data.curriculum is not None:
        words = f"data.curriculum={first.data.curriculum} chooses them: an epoch may leave some out"
        return AuditLine(subject, "note", words)
    if isinstance(facts.problems, str):
        unknown = f"in which order is unknown: {facts.problems}"
        return line(subject, "", _asked_twice(rollouts), unknown)
    problems = [problem.index for problem in facts.problems["train"]]
    replaced = {row["step"]: row.get("group/replaced_frac") or 0.0 for row in rows}
    last = min(max(rollouts.steps, default=0), len(replaced))  # no stranger's step 10 ** 18
    wrong = []
    epoch = taken = num_asked = 0
    order = epoch_order(first.seed, 0, len(problems))
    for number in range(1, last + 1):
        config = facts.of_step(number)
        assert isinstance(config, RunConfig)
        size = config.data.train_batch_size
        if size > len(problems):
            return line(subject, "", [f"step {number} has {size:,} of {len(problems):,} problems"])
        if len(problems) - taken < size:
            epoch += 1
            taken = 0
            order = epoch_order(first.seed, epoch, len(problems))
        due = [problems[i] for i in order[taken : taken + size]]
        taken += size
        if number not in rollouts.steps:
            continue
        step = rollouts.steps[number]
        pairs = enumerate(zip(due, step.problems, strict=False))
        others = [(i, ours, theirs) for i, (ours, theirs) in pairs if ours != theirs]
        share = replaced.get(number, 0.0)
        may_differ = round(size * share) if isinstance(share, float) and 0 <= share <= 1 else 0
        if len(others) > may_differ:
            place, ours, theirs = others[0]
            wrong.append(
                f"step {number}: {len(others)} of {size} problems are not those of "
                f"seed={first.seed}: group {place} is problem {theirs}, not {ours}"
            )
        elif step.epoch != epoch:
            wrong.append(f"step {number} says epoch {step.epoch}, and is of epoch {epoch}")
        num_asked += len(step.problems)
    return line(
        subject,
        f"{num_asked:,} groups ask the problems in the order of seed={first.seed}, each of "
        f"{len(problems):,} once per epoch, over {counted(epoch + 1, 'epoch')} and "
        f"{counted(len(facts.attempts), 'attempt')}",
        wrong,
    )


def _asked_twice(rollouts: Rollouts) -> list[str]:
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, step in rollouts.steps.items():
        for problem in step.problems:
            places[step.epoch, problem].append(number)
    return [
        f"problem {problem} was asked in steps {ranges(steps)} of one epoch"
        for (_, problem), steps in places.items()
        if len(steps) > 1
    ]
