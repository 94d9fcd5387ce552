"""Looks up what `sft.data` names, without a model: for preflight, and for the cache's key."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rl_core.config.model import GIVE_UP_PROB, TRACE_STEPS, TRACES
from rl_core.config.run import RunConfig
from rl_core.data.readers import count_rows, digest_of, find_files, is_hub_name, read_records
from rl_core.envs import ENVS
from rl_core.envs.rows import Record, own_prompt, shown
from rl_core.runs.rollout_log import step_files
from rl_core.runs.run_folder import RunFolder
from rl_core.types import Message

SETTING: Final = "sft.data"
REPORT_NAME: Final = "warm_start.json"
"""The file with a model's measurements, in the folder of a model that SFT made."""
CURVE_NAME: Final = "sft_loss.jsonl"
"""In the folder of a fine-tuned model, and of the runs that start from it: a row per step."""

_COLUMNS: Final = ("prompt", "response", "messages")
_OF_ROLLOUTS: Final = ("prompt", "response", "verdict", "finish_reason", "turns")


def check_sft(config: RunConfig) -> None:
    """Raises ValueError if `sft.data` names nothing that can be used; reads no row, asks no hub."""
    name = config.sft.data
    sft = config.env.sft
    if name is None:
        return
    if name != TRACES:
        sft_files(config, from_hub=False)
    elif sft is None:
        able = [name for name, env in ENVS.items() if env.sft is not None]
        raise ValueError(
            f"{SETTING}=traces: env={config.env.name} writes no traces ({' and '.join(able)} do): "
            "name a FILE of prompt and response"
        )
    elif sft.gives_up and not sft.is_taught(config.env):
        raise ValueError(
            f"{SETTING}=traces are searches of {sft.problems}: {sft.chosen_by}, or name a FILE"
        )
    gives_up = config.sft.give_up_prob not in (0, GIVE_UP_PROB)
    if gives_up and (name != TRACES or sft is None or not sft.gives_up):
        raise ValueError(
            f"sft.give_up_prob={config.sft.give_up_prob:g} is of traces that search "
            f"({SETTING}=traces env=countdown): leave it out"
        )


def sft_files(config: RunConfig, *, from_hub: bool = True) -> list[Path]:
    """Returns the files of `sft.data`: a run's rollouts, or those that a FILE names."""
    name = str(config.sft.data)
    rollouts = rollouts_folder(config)
    if rollouts is None:
        return find_files(SETTING, [name], "train", from_hub=from_hub)
    files = [file.path for file in step_files(rollouts)]
    if not files:
        raise ValueError(f"{SETTING}={name}: that run has kept no rollouts: name another")
    return files


def rollouts_folder(config: RunConfig) -> Path | None:
    """Returns the rollouts of the run that `sft.data` names; None if it names no run."""
    run = RunFolder.under(config.storage.root, str(config.sft.data))
    return run.rollouts.folder if run.is_there() else None


def right_responses(files: Sequence[Path]) -> Iterator[tuple[str, int, Record]]:
    """Yields (file, row, record) of a run's rollouts that are right, each text once.

    Left out: responses that were cut off or have turns of an env.
    """
    seen: set[tuple[str, str]] = set()
    for file in files:
        for row, record in read_records(file, _OF_ROLLOUTS):
            text = record["prompt"], record["response"]
            ended = record["finish_reason"] == "stop" and not record["turns"]
            if record["verdict"] == "correct" and ended and text not in seen:
                seen.add(text)
                yield str(file), row, record


def named_rows(config: RunConfig, *, from_hub: bool = True) -> Iterator[tuple[str, Record]]:
    """Yields (where it stands, record) of the rows that a file or a run of `sft.data` holds."""
    files = sft_files(config, from_hub=from_hub)
    if rollouts_folder(config) is not None:
        rows = right_responses(files)
    else:
        rows = (
            (str(file), row, record)
            for file in files
            for row, record in read_records(file, _COLUMNS)
        )
    for file, row, record in rows:
        yield f"{file}: row {row}", record


def check_rows(config: RunConfig, *, most: int) -> None:
    """Raises ValueError for the first of `most` rows of `sft.data` that is no example (no hub)."""
    name = config.sft.data
    if name in (None, TRACES) or is_hub_name(str(name)):
        return
    count = 0
    for where, record in islice(named_rows(config, from_hub=False), most):
        try:
            conversation(record)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        count += 1
    refuse_few(config, count)


def refuse_few(config: RunConfig, count: int) -> None:
    """Raises ValueError if so few rows of `sft.data` can be no examples to learn and to test."""
    if count < 2:
        raise ValueError(
            f"{SETTING}={config.sft.data} has {count} rows: at least 2 are needed, one to learn "
            "from and one to measure with"
        )


def conversation(record: Record) -> tuple[Sequence[Message], str, bool]:
    """Returns the messages before the response, the response, and whether they were one text."""
    messages = record.get("messages")
    if messages is not None:
        *before, last = list(own_prompt({"prompt": messages}) or ())
        if not before or last["role"] != "assistant":
            raise ValueError("messages must end with the assistant's, after at least one other")
        return before, _text("the assistant's content", last["content"]), False
    prompt = record.get("prompt")
    response = _text("response", record.get("response"))
    if isinstance(prompt, list):
        return own_prompt(record) or (), response, False
    return [Message(role="user", content=_text("prompt", prompt))], response, True


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{name}={shown(value)} must be a text: a row has prompt and response, or messages"
        )
    return value


def planned_sft_steps(config: RunConfig) -> int:
    """Returns the steps of SFT; rows of a file that are held out are counted as learned."""
    sft = config.sft
    if sft.steps is not None or sft.data == TRACES:
        return sft.steps or TRACE_STEPS
    files = sft_files(config, from_hub=False)
    is_run = rollouts_folder(config) is not None
    rows = sum(1 for _ in right_responses(files)) if is_run else sum(map(count_rows, files))
    return math.ceil(sft.epochs * rows / sft.batch_size)


def data_digest(config: RunConfig) -> str:
    """Returns a hash of the files of `sft.data`; empty for traces, which follow from settings."""
    return "" if config.sft.data == TRACES else digest_of(sft_files(config))
