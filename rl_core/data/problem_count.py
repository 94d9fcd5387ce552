"""How many training problems a data set will have, before it is made: steps and hours follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_name
from rl_core.data.env_source import find_source
from rl_core.data.readers import count_rows, is_hub_name
from rl_core.data.user_files import num_own_training_rows


@dataclass(frozen=True)
class ProblemCount:
    """The rows of a train split."""

    number: int
    is_bound: bool = False
    """There are no more, but perhaps fewer: doubles and rows of the test split are left out."""

    def __str__(self) -> str:
        """Returns it as a person says it: `8,000 problems`, `at most 5 problems`."""
        return f"{'at most ' if self.is_bound else ''}{self.number:,} problems"


def count_problems(config: RunConfig) -> ProblemCount:
    """Returns how many problems there are to train on, without asking the network.

    A data set that is there is counted, else what it will be made of: own files, a local copy of
    `env.source`, or what the settings ask for.

    Raises:
        ValueError: a file cannot be read, or leaves no row for training.
    """
    env, data = config.env, config.data
    if env.is_generated and not data.train_files:
        return ProblemCount(data.train_size)
    fetched = any(is_hub_name(name) for name in (*data.train_files, *data.test_files))
    if data.name is not None or not fetched:
        name = data.name or dataset_name(env, data)
        made = config.storage.root / "data" / name / "train.parquet"
        if made.is_file():
            return ProblemCount(count_rows(made))
    if data.train_files:
        if fetched:
            return ProblemCount(data.train_size, is_bound=True)
        return ProblemCount(num_own_training_rows(data), is_bound=True)
    source = env.source_name
    assert source is not None, f"env={env.name} neither generates its rows nor reads them"
    if Path(source).expanduser().is_dir():
        return ProblemCount(sum(map(count_rows, find_source(source)["train"])))
    assert env.hub_problems is not None, f"env={env.name} reads what it does not know"
    return ProblemCount(env.hub_problems)
