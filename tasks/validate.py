"""Validate: the SQL checks of `sql/checks` on both splits, and the tokens of prompts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from duckdb import DuckDBPyConnection
from prefect.context import TaskRunContext

from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_verified
from rl_core.data.prompt_lengths import SAMPLE_ROWS, CountTokens, measure_all, measure_by_parts
from rl_core.data.readers import SPLITS, DatasetError
from rl_core.data.template_check import Render as TemplateRender
from rl_core.envs import ENVS
from rl_core.envs.text_env import TextEnv
from rl_core.system.words import counted, cut, printable
from tasks.prefect_ui.artifacts import create_table_artifact, plain
from tasks.prefect_ui.flow_run import once_per_flow_run, stage
from tasks.queries import sql
from tasks.queries.saved_questions import SQL_FOLDER, Value, load_check
from tasks.validation import (
    LengthReport,
    Render,
    look_at_prompts,
    look_at_rendering,
    report_lengths,
)

_SHOWN_ROWS = 3  # offending rows that an error and the table show
_SHOWN_CHARACTERS = 200

Result = dict[str, Any]
"""One check: its name, what it proves, how many rows break it, its status, the first such rows."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """What was found."""

    checks: list[Result]
    lengths: LengthReport | None  # None if the checks before it failed
    rendered: str = ""  # the first training prompt, as the model reads it


class ValidationFailed(ValueError):  # noqa: N818  # what happened, not a kind of error
    """The data set breaks a rule; `validation` holds every check's row."""

    def __init__(self, message: str, validation: Validation) -> None:
        super().__init__(message)
        self.validation = validation

    def __reduce__(self) -> tuple[type[ValidationFailed], tuple[str, Validation]]:
        return type(self), (str(self), self.validation)  # the default keeps only the message


def validate_dataset(config: RunConfig, data: Path, model_path: Path) -> Validation:
    """Returns the checks, all passed; the model's tokenizer measures the prompts.

    DatasetError if a file is missing, truncated or damaged, ValidationFailed if a check found rows.
    """
    from rl_core.data.prompts import (  # transformers takes seconds to load
        count_tokens,
        encode_prompt,
        load_tokenizer,
        rendered,
    )

    tokenizer = load_tokenizer(str(model_path))
    chat = config.env.chat_template
    return check_dataset(
        config,
        data,
        lambda prompts: count_tokens(prompts, tokenizer, chat_template=chat),
        lambda messages: encode_prompt(messages, tokenizer, chat_template=chat)[0],
        (lambda messages, **names: rendered(messages, tokenizer, **config.env.chat_args, **names))
        if chat
        else None,
    )


def check_without_tokenizer(config: RunConfig, data: Path) -> int:
    """Returns the number of checks that need no tokenizer, all passed; errors as above."""
    return len(run_checks(config, data, _read_splits(data)))


def check_dataset(
    config: RunConfig,
    data: Path,
    count_tokens: CountTokens,
    render: Render = lambda messages: messages[-1]["content"],
    templated: TemplateRender | None = None,
) -> Validation:
    """Does the work of `validate_dataset`, with any tokenizer; `templated` is its chat template."""
    started = time.monotonic()
    splits = _read_splits(data)
    results = run_checks(config, data, splits)
    are_templated = all(result["status"] == "ok" for result in results)
    findings = look_at_prompts(config, splits) if config.data.train_files else []
    if templated is not None:
        findings += look_at_rendering(config, splits, templated)
    looked = []
    for check, proves, refuses, broken in findings:
        looked.append(_result(check, proves, pl.DataFrame(broken, infer_schema_length=None)))
        if broken and not refuses:
            _warn(looked[-1])
    _raise_if_failed(Validation(looked, None), data)
    results += looked
    lengths = measure_prompts(config.env, splits, count_tokens, are_templated=are_templated)
    results += [_length_result(split, lengths, config.data.max_prompt_length) for split in splits]
    report = report_lengths(lengths, config.data.max_prompt_length)
    rendered = render(splits["train"]["prompt"][0].as_py()) if splits["train"].num_rows else ""
    _raise_if_failed(Validation(results, report, rendered), data)
    _logger.info(
        "%s: %d checks passed in %.1f s; %s",
        data,
        len(results),
        time.monotonic() - started,
        report.verdict,
    )
    return Validation(results, report, rendered)


def check_files(env: TextEnv) -> list[Path]:
    """Returns the SQL checks of an env, first the check of its columns."""
    folder = SQL_FOLDER / "checks"
    owned = {folder / file for one in ENVS.values() for file in one.checks.files}
    columns, *files = (folder / file for file in env.checks.files)
    of_no_env = set(folder.glob("*.sql")) - owned
    return [columns, *sorted({*files, *of_no_env}, key=lambda path: path.name)]


def _cache_key(context: TaskRunContext, inputs: dict[str, Any]) -> str:
    """Returns a key that changes when the data set is made again."""
    made_at = [file.stat().st_mtime_ns for file in sorted(inputs["data"].glob("*.parquet"))]
    return once_per_flow_run(context, {**inputs, "made_at": made_at})


@stage("validate", "check the data set {data.name}", _cache_key)
def validate_task(config: RunConfig, data: Path, model_path: Path) -> None:
    """Checks the data set in a flow run; passed or not, table artifacts show what was found."""
    try:
        _show(validate_dataset(config, data, model_path), data)
    except ValidationFailed as failed:
        _show(failed.validation, data)
        raise


def measure_prompts(
    env: TextEnv, splits: Mapping[str, pa.Table], count_tokens: CountTokens, *, are_templated: bool
) -> pl.DataFrame:
    """Returns `split`, `index` and `prompt_tokens` of every problem, in the files' order.

    `are_templated`: it is proved that each prompt is its template, so parts may be measured.
    """
    of_numbers = env.checks.prompt_of_numbers
    columns = ["prompt", "nums", "target"] if of_numbers else ["prompt"]
    rows = pl.concat([_frame(table.select(columns)) for table in splits.values()])
    tokens = None
    if of_numbers and are_templated and rows.height > SAMPLE_ROWS:
        tokens = measure_by_parts(rows, partial(of_numbers, env), count_tokens)
        if tokens is None:
            _logger.info("here a prompt's parts do not add up to its tokens: each one is tokenized")
    if tokens is None:
        tokens = measure_all(rows["prompt"], count_tokens)
    index = pl.col("extra_info").struct.field("index")
    return pl.concat(
        _frame(table.select(["extra_info"])).select(split=pl.lit(split), index=index)
        for split, table in splits.items()
    ).with_columns(prompt_tokens=tokens)


def run_checks(config: RunConfig, data: Path, splits: Mapping[str, pa.Table]) -> list[Result]:
    """Returns one row per SQL check, all of them passed; the columns are checked first.

    ValidationFailed if a check found rows, DatasetError if no check could read a column's type.
    """
    env = config.env
    is_own = bool(config.data.train_files)
    columns, *others = check_files(env)
    left_out = env.checks.of_generator if is_own else ()
    others = [path for path in others if path.stem not in left_out]
    parameters = {
        "train_size": config.data.train_size,
        "test_size": config.data.test_size,
        **env.checks.parameters(env),
    }
    with sql.connect({}) as connection:
        for split, table in splits.items():
            try:
                sql.register(connection, split, table)
            except ValueError as error:
                raise DatasetError(
                    f"{data / split}.parquet: {printable(str(error))}: delete the folder and run "
                    "again"
                ) from error
        results = [_run_check(connection, columns, parameters)]
        _raise_if_failed(Validation(results, None), data)  # the others need these columns
        sql.unite(connection, "problems", list(splits))
        for name, table in env.checks.tables(splits).items():
            sql.register(connection, name, table)
        results += [_run_check(connection, path, parameters) for path in others]
    for result in results:
        if is_own and result["check"] in env.checks.of_template and result["status"] == "failed":
            _warn(result)
    _raise_if_failed(Validation(results, None), data)  # a row with nulls may have no prompt
    return results


def _warn(result: Result) -> None:
    result["status"] = "warning"
    _logger.warning(
        "check %s, of your own prompts: not true for %s: %s; first rows: %s",
        result["check"],
        counted(result["rows"], "row"),
        result["proves"],
        result["first rows"],
    )


def _run_check(
    connection: DuckDBPyConnection, path: Path, parameters: Mapping[str, Value]
) -> Result:
    check = load_check(path)
    declared = {p.name: parameters[p.name] for p in check.parameters if p.name in parameters}
    proves = check.description.partition("Proves that ")[2].removesuffix(".")
    return _result(path.stem, proves, sql.violations(connection, check, declared))


def _read_splits(data: Path) -> dict[str, pa.Table]:
    return {split: read_verified(data / f"{split}.parquet") for split in SPLITS}


def _length_result(split: str, lengths: pl.DataFrame, limit: int) -> Result:
    of_split = lengths.filter(pl.col("split") == split).drop("split")
    tokens = of_split["prompt_tokens"].to_numpy()
    return _result(
        f"prompt_tokens_{split}",
        f"every prompt fits into data.max_prompt_length={limit} tokens (min {tokens.min()}, mean "
        f"{tokens.mean():.1f}, p99 {np.quantile(tokens, 0.99, method='nearest')}, "
        f"max {tokens.max()})",
        of_split.filter(pl.col("prompt_tokens") > limit),
    )


def _result(check: str, proves: str, rows: pl.DataFrame) -> Result:
    first = [json.dumps(row, ensure_ascii=False) for row in rows.head(_SHOWN_ROWS).to_dicts()]
    return {
        "check": check,
        "proves": proves,
        "rows": rows.height,
        "status": "failed" if rows.height else "ok",
        "first rows": "; ".join(printable(cut(text, _SHOWN_CHARACTERS)) for text in first),
    }


def _raise_if_failed(validation: Validation, data: Path) -> None:
    failed = [result for result in validation.checks if result["status"] == "failed"]
    if not failed:
        return
    first, *others = failed
    if validation.lengths is not None:  # measured last: nothing else has failed
        named = "".join(
            f"; in {result['check'].removeprefix('prompt_tokens_')}: {result['first rows']}"
            for result in failed
            if result["rows"] <= _SHOWN_ROWS
        )
        raise ValidationFailed(f"{data}: {validation.lengths.verdict}{named}", validation)
    also = f" (failed too: {', '.join(result['check'] for result in others)})" if others else ""
    rows = counted(first["rows"], "row")
    raise ValidationFailed(
        f"{data}: check {first['check']} failed on {rows}{also}, not true: "
        f"{first['proves']}; first rows: {first['first rows']}",
        validation,
    )


def _show(validation: Validation, data: Path) -> None:
    checks = validation.checks
    verdict = f"All {len(validation.checks)} checks passed."
    if failed := [result["check"] for result in checks if result["status"] == "failed"]:
        verdict = f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}."
    rows = [  # the status comes first; text of problems is made plain
        {name: result[name] for name in ("status", "check", "rows")}
        | {name: plain(result[name]) for name in ("proves", "first rows")}
        for result in checks
    ]
    create_table_artifact(rows, key="validation", description=f"{verdict} Data set: {data}")
    if validation.rendered:
        create_table_artifact(
            [{"prompt": plain(printable(validation.rendered))}],
            key="rendered-prompt",
            description="The first training prompt, as the model reads it.",
        )
    if (lengths := validation.lengths) is not None:
        create_table_artifact(lengths.limits, key="prompt-limits", description=lengths.verdict)


def _frame(table: pa.Table) -> pl.DataFrame:
    return pl.DataFrame(table.replace_schema_metadata())
