"""Validate: every SQL check on both splits, and prompt lengths under the model's own tokenizer.

A check is a file of `sql/checks` that selects the rows which break a rule. A file named after an
env (`countdown_...sql`) runs for that env only, all others run always.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from rl_core.config import CountdownConfig, EnvConfig, RunConfig
from rl_core.dataset import read_problems, verify_file
from rl_core.types import Message
from tasks.sql import SQL_FOLDER, run_check

ENVS = ("countdown", "gsm8k")
SHOWN_ROWS = 3
"""Offending rows that an error and the table show."""
_SHOWN_CHARACTERS = 200

CountTokens = Callable[[Sequence[Message]], int]
Result = dict[str, Any]
"""One check: its name, what it proves, how many rows break it, its status, the first such rows."""

_logger = logging.getLogger(__name__)


class ValidationFailed(ValueError):  # noqa: N818  # what happened, not a kind of error
    """The data set breaks a rule; `results` holds every check's row."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results

    def __reduce__(self) -> tuple[type[ValidationFailed], tuple[str, list[Result]]]:
        """Rebuilds from both fields: an exception's default pickle would pass the message alone."""
        return type(self), (str(self), self.results)


def validate_dataset(config: RunConfig, data: Path, model_path: Path) -> list[Result]:
    """Returns one row per check, all of them passed.

    Args:
        config: the settings that the data set must fit.
        data: its folder.
        model_path: folder of the model whose tokenizer measures the prompts.

    Raises:
        DatasetError: a file is missing, truncated or damaged.
        ValidationFailed: a check found rows.
    """
    from rl_core.prompts import encode_prompt, load_tokenizer  # transformers takes seconds to load

    tokenizer = load_tokenizer(str(model_path))
    chat = config.env.prompt_template == "chat"
    return check_dataset(
        config,
        data,
        lambda messages: len(encode_prompt(messages, tokenizer, chat_template=chat)[1]),
    )


def check_dataset(config: RunConfig, data: Path, count_tokens: CountTokens) -> list[Result]:
    """Does the work of `validate_dataset`, with any way to count a prompt's tokens."""
    started = time.monotonic()
    for split in ("train", "test"):
        verify_file(data / f"{split}.parquet")
    columns, *others = check_files(config.env)
    results = [_run_sql(columns, config, data)]
    _raise_if_failed(results, data)  # the other checks would not fit other columns
    results += [_run_sql(path, config, data) for path in others]
    _raise_if_failed(results, data)  # rows with nulls, say, hold no prompts to measure
    results += _prompt_lengths(data, count_tokens, config.data.max_prompt_length)
    _raise_if_failed(results, data)
    _logger.info("%s: %d checks passed in %.1f s", data, len(results), time.monotonic() - started)
    return results


def check_files(env: EnvConfig) -> list[Path]:
    """Returns the SQL checks of an env, the one of its columns first."""
    foreign = tuple(f"{name}_" for name in ENVS if name != env.name)
    files = sorted((SQL_FOLDER / "checks").glob("*.sql"))
    own = [path for path in files if not path.stem.startswith(foreign)]
    return sorted(own, key=lambda path: path.stem != f"{env.name}_columns")


@task(name="validate", task_run_name="check the data set", cache_policy=NO_CACHE)
def validate_task(config: RunConfig, data: Path, model_path: Path) -> None:
    """Checks the data set in a flow run; passed or not, a table artifact shows every check."""
    try:
        _show(validate_dataset(config, data, model_path), data)
    except ValidationFailed as failed:
        _show(failed.results, data)
        raise


def _show(results: list[Result], data: Path) -> None:
    description = f"Checks of the data set {data}."
    create_table_artifact(results, key="validation", description=description)


def _run_sql(path: Path, config: RunConfig, data: Path) -> Result:
    sql = path.read_text(encoding="utf-8")
    declared = {k: v for k, v in _parameters(config).items() if f"-- ${k}:" in sql}
    rows = run_check(
        path,
        train=data / "train.parquet",
        test=data / "test.parquet",
        parameters=declared,
    )
    comments = [line[2:].strip() for line in sql.splitlines() if line.startswith("-- ")]
    proves = next((c.removeprefix("Proves that ") for c in comments if c.startswith("Proves")), "")
    return _result(path.stem, proves, rows)


def _parameters(config: RunConfig) -> dict[str, int]:
    if not isinstance(config.env, CountdownConfig):
        return {}
    ranges = config.env.model_dump(
        include={
            f"{end}_{what}" for end in ("min", "max") for what in ("operands", "number", "target")
        }
    )
    return {**ranges, "train_size": config.data.train_size, "test_size": config.data.test_size}


def _prompt_lengths(data: Path, count_tokens: CountTokens, limit: int) -> list[Result]:
    results: list[Result] = []
    for split in ("train", "test"):
        problems = read_problems(data / f"{split}.parquet")
        lengths = pl.DataFrame(
            {
                "index": [problem.index for problem in problems],
                "prompt_tokens": [count_tokens(problem.messages) for problem in problems],
            }
        )
        (summary,) = lengths.select(
            shortest=pl.col("prompt_tokens").min(),
            mean=pl.col("prompt_tokens").mean(),
            p99=pl.col("prompt_tokens").quantile(0.99, "nearest"),
            longest=pl.col("prompt_tokens").max(),
        ).to_dicts()
        proves = (
            f"every prompt fits into data.max_prompt_length={limit} tokens (min "
            f"{summary['shortest']}, mean {summary['mean']:.1f}, p99 {summary['p99']:.0f}, "
            f"max {summary['longest']})"
        )
        over = lengths.filter(pl.col("prompt_tokens") > limit)
        results.append(_result(f"prompt_tokens_{split}", proves, over))
    return results


def _result(check: str, proves: str, rows: pl.DataFrame) -> Result:
    first = [json.dumps(row, ensure_ascii=False) for row in rows.head(SHOWN_ROWS).to_dicts()]
    return {
        "check": check,
        "proves": proves.removesuffix("."),
        "rows": rows.height,
        "status": "failed" if rows.height else "ok",
        "first rows": "; ".join(text[:_SHOWN_CHARACTERS] for text in first),
    }


def _raise_if_failed(results: list[Result], data: Path) -> None:
    failed = [result for result in results if result["status"] == "failed"]
    if not failed:
        return
    first, *others = failed
    also = f" (failed too: {', '.join(result['check'] for result in others)})" if others else ""
    raise ValidationFailed(
        f"{data}: check {first['check']} failed on {first['rows']} rows{also}, not true: "
        f"{first['proves']}; first rows: {first['first rows']}",
        results,
    )
