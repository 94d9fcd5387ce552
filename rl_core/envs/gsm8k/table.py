"""Word problems as the rows of a data set (data path stage 1)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rl_core.envs.gsm8k.prompts import DATA_SOURCE, render_messages
from rl_core.envs.gsm8k.scoring import extract_truth
from rl_core.envs.gsm8k.settings import Gsm8kConfig
from rl_core.envs.gsm8k.word_problems import generate_word_problems
from rl_core.schema import dataset_schema

GSM8K_DATASET = dataset_schema(pa.string())


def toy_tables(
    env: Gsm8kConfig, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    """Returns both splits of word problems that are written here."""
    written = generate_word_problems(size=train_size + test_size, seed=seed)
    pairs = [(problem.question, problem.answer) for problem in written]
    return {
        "train": gsm8k_table(env, "train", pairs[test_size:]),
        "test": gsm8k_table(env, "test", pairs[:test_size]),
    }


def gsm8k_table(env: Gsm8kConfig, split: str, pairs: Sequence[tuple[str, str]]) -> pa.Table:
    """Returns the rows of one split, with the schema `GSM8K_DATASET`.

    Args:
        env: says how they are asked.
        split: its name, for `extra_info`.
        pairs: (question, answer) of each row.

    Raises:
        ValueError: an answer does not end with its number.
    """
    rows = [
        {
            "data_source": DATA_SOURCE,
            "prompt": render_messages(env.prompt_template, question),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": extract_truth(answer)},
            "extra_info": {
                "split": split,
                "index": index,
                "num_solutions": 0,
                "solution": answer,
            },
        }
        for index, (question, answer) in enumerate(pairs)
    ]
    return pa.Table.from_pylist(rows, schema=GSM8K_DATASET)
