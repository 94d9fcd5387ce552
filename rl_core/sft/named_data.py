"""Looks up what `sft.data` names, without a model: for preflight, and for the cache's key."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rl_core.config.model import GIVE_UP_PROB, TRACE_STEPS, TRACES
from rl_core.config.run import RunConfig
from rl_core.data.readers import count_rows, digest_of, find_files, read_records
from rl_core.envs import ENVS
from rl_core.envs.rows import Record
from rl_core.runs.rollout_log import step_files
from rl_core.runs.run_folder import RunFolder

SETTING: Final = "sft.data"
REPORT_NAME: Final = "warm_start.json"
"""The file with a model's measurements, in the folder of a model that SFT made."""
CURVE_NAME: Final = "sft_loss.jsonl"
"""In the folder of a fine-tuned model, and of the runs that start from it: a row per step."""

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
