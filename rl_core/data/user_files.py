"""The user's own problems: files of any known shape -> both splits of a data set (stage 1).

Rows that would spoil a measurement are dropped and counted: duplicates, training rows that are also
in the test split, problems without a solution.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rl_core.config.run import DataConfig
from rl_core.data.readers import (
    SPLITS,
    count_rows,
    digest_of,
    file_digest,
    find_files,
    media_columns,
    read_records,
)
from rl_core.envs.rows import COLUMNS, Record, Row, tables_of
from rl_core.envs.text_env import TextEnv
from rl_core.types import Problem

MEDIA_MARK: Final = re.compile(
    r"<(?:image|video|audio|img)>|<\|(?:image|video|audio|vision_start)(?:_pad)?(?:_\d+)?\|>"
    r"|\[IMG\]|<start_of_image>"
)
"""Where a picture, a video or sound would stand in a prompt."""
_logger = logging.getLogger(__name__)


class OwnFilesError(ValueError):
    """What the user gave cannot be used: one line that names file, row, value and limit."""


@contextmanager
def _refused_as_own_files() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise OwnFilesError(str(error)) from error


@_refused_as_own_files()
def own_files(data: DataConfig, *, from_hub: bool = True) -> dict[str, list[Path]]:
    """Returns the files of each split that is named; without `from_hub` the network is not used."""
    named = {"train": data.train_files, "test": data.test_files}
    return {
        split: find_files(f"data.{split}_files", names, split, from_hub=from_hub)
        for split, names in named.items()
        if names
    }


@_refused_as_own_files()
def own_settings(env: TextEnv, data: DataConfig) -> dict[str, Any]:
    """Returns everything that the rows depend on: the files count by content, not by name."""
    sizes = {"train_size"} if data.test_files else {"train_size", "test_size"}
    return {
        "env": env.model_dump(mode="json", include={"name", "prompt_template"}),
        **data.model_dump(mode="json", include=sizes),
        **{f"{split}_files": digest_of(files) for split, files in own_files(data).items()},
    }


@_refused_as_own_files()
def num_own_training_rows(data: DataConfig) -> int:
    """Returns how many rows the train split has, before any is left out, from local files only."""
    num_rows = sum(map(count_rows, own_files(data, from_hub=False)["train"]))
    if data.test_files:
        return min(num_rows, data.train_size)
    _refuse_test_rows_alone(num_rows, data)
    return min(num_rows - data.test_size, data.train_size)


@_refused_as_own_files()
def read_own_data(env: TextEnv, data: DataConfig) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Returns both splits, and counts of the rows read and dropped, which it logs in one line.

    Without `data.test_files` the first train_size + test_size rows are taken and the last test_size
    of them are the test split, as TinyZero cuts its data. Rows are cut before any is dropped.
    """
    files = own_files(data)
    left_out: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    rows = _read_splits(env, data, files, left_out["train"])
    num_read = {split: len(rows[split]) for split in SPLITS}
    tested: set[tuple[Any, ...]] = set()
    for split in reversed(SPLITS):  # a problem in both belongs to the test split
        rows[split] = _without_doubles(rows[split], tested, left_out[split])
        solved = env.rows.solve(rows[split])  # None if the env's solver finds nothing
        left_out[split]["without a solution"] += solved.count(None)
        rows[split] = [problem for problem in solved if problem is not None]
        tested = {problem.key for problem in rows[split]}
    _say_what_was_left_out(rows, num_read, left_out)
    return tables_of(rows, env.rows.schema()), {
        "rows_read": num_read,
        "left_out": {split: dict(+left_out[split]) for split in SPLITS},
        "other_prompts": {},  # kept: the same rows make the same file
        "files": {
            split: [{"file": str(file), "sha256": file_digest(file)} for file in named]
            for split, named in files.items()
        },
    }


@dataclass(frozen=True)
class OwnRows:
    """A look at the user's rows before the data set is made of them."""

    rows: list[Row]  # the first ones of the train files, and of the test files if there are any
    num_read: int
    num_distinct: int  # of the train files; if not all were looked at, duplicates count
    num_train: int
    num_test: int
    cuts_tests: bool  # the test split is cut from the train files

    def __str__(self) -> str:
        """Returns `900 rows, 388 to train on and 512 to test`."""
        return (
            f"{self.num_read:,} rows, {max(self.num_train, 0):,} to train on and "
            f"{self.num_test:,} to test"
        )


@_refused_as_own_files()
def read_own_rows(env: TextEnv, data: DataConfig, *, most: int) -> OwnRows:
    """Returns the first rows of the files on this machine, checked, and the splits' sizes."""
    files = own_files(data, from_hub=False)
    num_read = {split: sum(map(count_rows, files.get(split, []))) for split in SPLITS}
    cuts_tests = not data.test_files
    to_take = data.train_size + (data.test_size if cuts_tests else 0)
    rows = {
        split: list(islice(read_rows(env, files.get(split, [])), min(most, to_take)))
        for split in SPLITS
    }
    taken = min(num_read["train"], to_take)
    num_distinct = len({row.key for row in rows["train"]}) if taken <= most else taken
    return OwnRows(
        rows["train"] + rows["test"],
        num_read["train"],
        num_distinct,
        num_distinct - (data.test_size if cuts_tests else 0),
        data.test_size if cuts_tests else num_read["test"],
        cuts_tests,
    )


def first_own_problems(env: TextEnv, data: DataConfig, count: int) -> list[Problem]:
    """Returns the first problems of the user's files on this machine; empty if there are none."""
    files = own_files(data, from_hub=False).get("train", [])
    return [
        Problem(
            index, row.data_source, tuple(row.prompt), row.truth, row.num_solutions, row.extra_info
        )
        for index, row in enumerate(islice(read_rows(env, files), count))
    ]


def _read_splits(
    env: TextEnv, data: DataConfig, files: dict[str, list[Path]], left_out: Counter[str]
) -> dict[str, list[Row]]:
    """Returns the rows of each split; counts those of the train files that are not taken."""
    to_take = data.train_size if data.test_files else data.train_size + data.test_size
    records = _records(env, files["train"])
    rows = {"train": [_read(env, *record) for record in islice(records, to_take)]}
    left_out[f"beyond data.train_size={data.train_size}"] = sum(1 for _ in records)
    if data.test_files:
        rows["test"] = list(read_rows(env, files["test"]))
    else:
        _refuse_test_rows_alone(len(rows["train"]), data)
        rows["test"] = rows["train"][-data.test_size :]
        del rows["train"][-data.test_size :]
    return rows


def _refuse_test_rows_alone(num_rows: int, data: DataConfig) -> None:
    if num_rows <= data.test_size:
        raise ValueError(
            f"data.train_files hold {num_rows} rows, no more than data.test_size={data.test_size}, "
            "which would be cut off for the test split: lower it, or give data.test_files"
        )


def read_rows(env: TextEnv, files: Iterable[Path]) -> Iterator[Row]:
    """Yields the problems of files, checked by the env; ValueError names file and row."""
    return (_read(env, *record) for record in _records(env, files))


def _records(env: TextEnv, files: Iterable[Path]) -> Iterator[tuple[Path, int, Record]]:
    """Yields (file, row, record); raises ValueError if a file holds no rows."""
    for file in files:
        row = 0
        for row, record in read_records(file, (*env.rows.columns, *COLUMNS)):
            yield file, row, record
        if row == 0:
            raise ValueError(f"{file}: holds no rows: leave it out")


def _read(env: TextEnv, file: Path, row: int, record: Record) -> Row:
    try:
        if env.rows.read is None:
            raise ValueError(
                f"env={env.name} makes its own problems: env=custom takes rows of yours"
            )
        problem = env.rows.read(env, record)
    except ValueError as error:
        raise ValueError(f"{file}: row {row}: {error}") from None
    marks = (MEDIA_MARK.search(message["content"]) for message in problem.prompt)
    mark = next(filter(None, marks), None)
    if mark is not None and (columns := media_columns(file)):
        raise ValueError(
            f"{file}: row {row}: its prompt has {mark[0]}, and the column {columns[0]} is not "
            "read, since models here read text only: leave such rows out"
        )
    return problem


def _without_doubles(
    problems: Sequence[Row], tested: set[tuple[Any, ...]], left_out: Counter[str]
) -> list[Row]:
    """Returns the first problem of each key that is not in the test split."""
    unique: dict[tuple[Any, ...], Row] = {}
    for problem in problems:
        if problem.key in tested:
            left_out["in the test split"] += 1
        elif problem.key in unique:
            left_out["duplicates"] += 1
        else:
            unique[problem.key] = problem
    return list(unique.values())


def _say_what_was_left_out(
    rows: dict[str, list[Row]], num_read: Mapping[str, int], left_out: dict[str, Counter[str]]
) -> None:
    messages = []
    for split in SPLITS:
        reasons = [f"{count:,} {reason}" for reason, count in (+left_out[split]).items()]
        messages.append(
            f"{split} has {len(rows[split]):,} of {num_read[split]:,} rows"
            + (f", left out: {', '.join(reasons)}" if reasons else "")
        )
        if not rows[split]:
            raise ValueError(f"own files: {messages[-1]}: give other data.{split}_files")
    _logger.info("own files: %s", "; ".join(messages))
