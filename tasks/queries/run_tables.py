"""Finds what runs have written so far, as Arrow tables of raw lines and records for `sql.py`.

It is not a parser: files may be half-written while a run works, so text is passed on unchanged, and
the views of `sql/views` select what is complete.
"""

import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.data.readers import count_rows
from rl_core.runs.metrics_log import MOST_LOG_BYTES
from rl_core.runs.rollout_log import step_files
from rl_core.runs.run_folder import RunRecord
from rl_core.runs.settings_file import leaves, parse_settings, settings_text
from rl_core.schema import EVALUATION, MOST_VALIDATION_ROWS
from rl_core.system.atomic import reading
from rl_core.system.plain_files import open_plain, parse_json, read_plain
from rl_core.system.plain_parquet import check_columns, open_parquet, read_table
from rl_core.system.words import did_you_mean, printable

Files = Mapping[str, Sequence[Path]]
"""Files by the name of the run in whose folder they are: it counts, not the `run_id` in them."""
_logger = logging.getLogger(__name__)


def _columns(names: str, **others: pa.DataType) -> pa.Schema:
    return pa.schema({name: others.get(name, pa.string()) for name in names.split()})


_DATASETS = _columns(
    "name split folder num_rows total_bytes content_hash seed made_by",
    num_rows=pa.int64(),
    total_bytes=pa.int64(),
)
_CHECKPOINT_RECORDS = _columns(
    "run_id name folder record is_latest is_best", is_latest=pa.bool_(), is_best=pa.bool_()
)


def find_runs(root: Path, run: str | None = None) -> list[Path]:
    """Returns all runs' folders, oldest first, or one: its id, the beginning of that, or `latest`.

    Raises:
        ValueError: no run is called so, or several begin so.
    """
    folder = root / "runs"
    runs = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    runs.sort(key=lambda run: (json.loads(_record(run)).get("started_at") or "", run.name))
    if run is None:
        return runs
    if run == "latest":
        if not runs:
            raise ValueError(f"no run in {folder} yet: start one with `countdown-train run`")
        return runs[-1:]
    matches = [path for path in runs if path.name == run] or [
        path for path in runs if run and path.name.startswith(run)
    ]
    if len(matches) > 1:
        raise ValueError(
            f"{len(matches)} runs in {folder} begin with {run!r} "
            f"({', '.join(path.name for path in matches[-3:])}): write more"
        )
    if not matches:
        raise ValueError(
            f"no run {run!r} in {folder}{did_you_mean(run, (path.name for path in runs))} "
            "(`countdown-train runs` lists them)"
        )
    return matches


@contextmanager
def reading_rollouts(runs: Sequence[Path]) -> Iterator[list[Path]]:
    """Yields the runs' rollout files, each step in one of them; none is deleted in the block."""
    with ExitStack() as held:
        for run in runs:
            with suppress(OSError):
                held.enter_context(reading(run / "rollouts"))
        yield [file.path for run in runs for file in step_files(run / "rollouts")]


def sound_files(runs: Sequence[Path], files: Sequence[Path], columns: pa.Schema) -> Files:
    """Returns the parquet files that can be read, by the run in whose folder they are.

    A warning names each of the others: what is wrong with one run stops no question.
    """
    sound: dict[str, list[Path]] = {}
    folders = {run: run for run in runs}
    for file in files:
        run = next(folders[parent] for parent in file.parents if parent in folders)
        try:
            with open_plain(file, below=run) as stream:
                info = os.fstat(stream.fileno())
            _look_at(file, run, columns, (info.st_ino, info.st_size, info.st_mtime_ns))
        except FileNotFoundError:
            continue  # deleted a moment ago
        except (OSError, ValueError) as error:
            reason = f"{file} {error.strerror}" if isinstance(error, OSError) else error
            warn_once(f"run {run.name}: {reason}: left out")
        else:
            sound.setdefault(run.name, []).append(file)
    return sound


@lru_cache(maxsize=100_000)
def _look_at(file: Path, run: Path, columns: pa.Schema, _state: tuple[int, ...]) -> None:
    """Raises ValueError if a file does not hold such rows, or more than fit into memory."""
    with open_parquet(file, below=run) as rows:
        check_columns(file, rows, columns)


@cache
def warn_once(message: str) -> None:
    """Logs a warning, once: a report asks forty questions."""
    _logger.warning("%s", printable(message))


def metric_lines(runs: Sequence[Path]) -> pa.Table:
    """Returns one row per line of each run's metrics.jsonl; the last may be half-written."""
    rows = [
        {"run_id": run.name, "line_number": number, "line": line}
        for run in runs
        for number, line in enumerate(_text(run / "metrics.jsonl", run).split("\n"))
    ]
    return pa.Table.from_pylist(
        rows, schema=_columns("run_id line_number line", line_number=pa.int64())
    )


def run_records(runs: Sequence[Path]) -> pa.Table:
    """Returns one row per run: its run.json as text, `{}` if there is none yet."""
    rows = [{"run_id": run.name, "folder": str(run), "record": _record(run)} for run in runs]
    return pa.Table.from_pylist(rows, schema=_columns("run_id folder record"))


def _record(run: Path) -> str:
    """A run's record as JSON; if it is cut short or damaged, one that says so."""
    try:
        content = read_plain(run / "run.json", below=run)
    except FileNotFoundError:
        return "{}"
    except ValueError as error:
        return json.dumps({"status": "unreadable", "reason": str(error)})
    return _checked(run.name, content)


@lru_cache(maxsize=1_000)
def _checked(run_id: str, content: bytes) -> str:
    try:
        record = parse_json(content) | {"run_id": run_id}
        RunRecord.model_validate(record, extra="ignore")
    except (TypeError, ValueError):
        record = {"status": "unreadable", "reason": "its run.json is cut short or damaged"}
    return json.dumps(record)


def checkpoint_records(runs: Sequence[Path]) -> pa.Table:
    """Returns one row per checkpoint: its manifest as text, and which links point to it."""
    rows = []
    for run in runs:
        folder = run / "checkpoints"
        latest, best = (os.path.realpath(folder / link) for link in ("latest", "best"))
        for manifest in sorted(folder.glob("step_*/checkpoint.json")):
            real = os.path.realpath(manifest.parent)
            rows.append(
                {
                    "run_id": run.name,
                    "name": manifest.parent.name,
                    "folder": str(manifest.parent),
                    "record": _text(manifest, run),
                    "is_latest": real == latest,
                    "is_best": real == best,
                }
            )
    return pa.Table.from_pylist(rows, schema=_CHECKPOINT_RECORDS)


def setting_rows(runs: Sequence[Path]) -> pa.Table:
    """Returns one row per run and setting of its config.yaml, values as YAML would write them."""
    rows = [
        {"run_id": run.name, "key": key, "value": value}
        for run in runs
        for key, value in _settings(settings_text(run))
    ]
    return pa.Table.from_pylist(rows, schema=_columns("run_id key value"))


@lru_cache(maxsize=1_000)
def _settings(text: str) -> tuple[tuple[str, str], ...]:
    """Returns keys and values; cached: parsing a config.yaml takes longer than most questions."""
    pairs = leaves(parse_settings(text))
    return tuple((key, "null" if value is None else str(value)) for key, value in pairs)


def dataset_records(root: Path) -> pa.Table:
    """Returns one row per split of each data set below `root`, from its file's footer."""
    rows = []
    for file in sorted((root / "data").glob("*/[!.]*.parquet")):
        # A file that is no parquet is no data set.
        with suppress(OSError, pa.ArrowException), open_plain(file, follow=True) as stream:
            footer = pq.read_metadata(stream)
            metadata = footer.metadata or {}
            rows.append(
                {
                    "name": file.parent.name,
                    "split": file.stem,
                    "folder": str(file.parent),
                    "num_rows": footer.num_rows,
                    "total_bytes": os.fstat(stream.fileno()).st_size,
                    "content_hash": metadata.get(b"countdown_train.content_sha256"),
                    "seed": metadata.get(b"countdown_train.seed"),
                    "made_by": metadata.get(b"countdown_train.generator"),
                }
            )
    return pa.Table.from_pylist(rows, schema=_DATASETS)


def num_tested(run: Path) -> int | None:
    """Returns how many problems a test during training asks; None if that is not known any more.

    Only the first answers of a test are kept: they say it only if there are fewer than that.
    """
    kept: set[int] = set()
    with suppress(OSError, ValueError, KeyError, TypeError):
        for file in sorted((run / "held_out").glob("[!.]*.parquet"))[-1:]:
            rows = read_table(file, EVALUATION, below=run, columns=["prompt_index"])
            kept = set(rows["prompt_index"].to_pylist())
        most = int(parse_settings(_text(run / "config.yaml", run))["trainer"]["test_problems"])
        data = Path(json.loads(_record(run))["data"])
        return min(most, count_rows(data / "test.parquet"))
    return len(kept) if 0 < len(kept) < MOST_VALIDATION_ROWS else None


def bytes_by_kind(run: Path) -> dict[str, int]:
    """Returns what a run takes on the disk: bytes per top-level folder or file, largest first."""
    sizes: Counter[str] = Counter()
    for folder, _, names in os.walk(run):  # skips folders that are deleted meanwhile
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    sizes[path.relative_to(run).parts[0]] += status.st_size
    return dict(sizes.most_common())


def _text(file: Path, run: Path) -> str:
    """A file's text; empty if it is absent (or was pruned a moment ago), or cannot be read."""
    try:
        return read_plain(file, below=run, most_bytes=MOST_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except ValueError as error:
        warn_once(f"run {run.name}: {error}: left out")
        return ""
