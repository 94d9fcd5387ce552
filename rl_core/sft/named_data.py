"""Looks up what `sft.data` names, without a model: for preflight, and for the cache's key."""

import math
from typing import Final

from rl_core.config.model import GIVE_UP_PROB, TRACE_STEPS
from rl_core.config.run import RunConfig
from rl_core.data.readers import count_rows, digest_of, find_files
from rl_core.envs import ENVS

SETTING: Final = "sft.data"
TRACES: Final = "traces"
REPORT_NAME: Final = "warm_start.json"
"""The file with a model's measurements, in the folder of a model that SFT made."""
CURVE_NAME: Final = "sft_loss.jsonl"
"""In the folder of a fine-tuned model, and of the runs that start from it: a row per step."""


def check_sft(config: RunConfig) -> None:
    """Raises ValueError if `sft.data` names nothing that can be used; reads no row, asks no hub."""
    name = config.sft.data
    sft = config.env.sft
    if name is None:
        return
    if name != TRACES:
        find_files(SETTING, [name], "train", from_hub=False)
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


def planned_sft_steps(config: RunConfig) -> int:
    """Returns the steps of SFT; rows of a file that are held out are counted as learned."""
    sft = config.sft
    assert sft.data is not None, "there is no SFT"
    if sft.steps is not None or sft.data == TRACES:
        return sft.steps or TRACE_STEPS
    rows = sum(map(count_rows, find_files(SETTING, [sft.data], "train", from_hub=False)))
    return math.ceil(sft.epochs * rows / sft.batch_size)


def data_digest(config: RunConfig) -> str:
    """Returns a hash of the files of `sft.data`; empty for traces, which follow from settings."""
    name = config.sft.data
    assert name is not None, "there is no SFT"
    return "" if name == TRACES else digest_of(find_files(SETTING, [name], "train"))
