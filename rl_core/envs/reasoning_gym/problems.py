"""The package's problems, checked: no question twice, none of the test split in train.

Data path stage 1. A task is a function of a seed and an index: the test split has the first
questions, the train split the next ones, repeated questions left out. A question counts only if its
scorer gives the package's own answer full marks after both were written and read again.
"""

import json
import os
import random
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final, TypeAlias

from rl_core.envs.reasoning_gym.truths import INSTALL, REFUSED, WHY_REFUSED, to_json, with_enums
from rl_core.envs.text_env import TextProblem
from rl_core.system.child_process import Child, channel_to_parent, pack, unpack
from rl_core.system.words import did_you_mean

_SAME_SETS: Final = {"PYTHONHASHSEED": "0"}
"""At least eight tasks iterate over sets of texts, whose order differs between processes."""
_TRIED_AT_LEAST = 50
_TRIED_PER_ROW = 10
"""A task that gives no new question in so many tries per row has too few."""

Configs: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Settings of the package, by task."""
Splits: TypeAlias = dict[str, list[TextProblem]]
_PART: Final = 2**15
"""Characters of a message: the other end reads many small ones faster than a large one."""


def make_problems(
    weights: Mapping[str, float],
    difficulty: int | None,
    configs: Configs,
    *,
    train_size: int,
    test_size: int,
    seed: int,
) -> Splits:
    """Returns problems of both splits, the tasks mixed by their weights, or raises ValueError."""
    if find_spec("reasoning_gym") is None:
        raise ValueError(INSTALL)
    if not _SAME_SETS.items() <= os.environ.items():
        return _make_elsewhere(
            weights, difficulty, configs, train_size=train_size, test_size=test_size, seed=seed
        )
    made: Splits = {"train": [], "test": []}
    tests, trains = (_shares(weights.values(), size) for size in (test_size, train_size))
    for name, num_test, num_train in zip(weights, tests, trains, strict=True):
        size = num_test + num_train
        dataset, config = open_task(name, difficulty, configs, seed=seed, num_rows=size)
        problems = list(islice(_problems(name, dataset, config), size))
        if len(problems) < size:
            raise ValueError(
                f"env.task={name}: {len(problems)} different questions that its scorer can judge "
                f"were found, {size} are needed: lower data.train_size and data.test_size "
                "or its weight, raise env.difficulty, or leave it out"
            )
        made["test"] += problems[:num_test]
        made["train"] += problems[num_test:]
    for split, problems in made.items():
        random.Random(f"{seed}/{split}").shuffle(problems)
    return made


def _make_elsewhere(*tasks: Any, **sizes: Any) -> Splits:
    """Calls `make_problems` in a process in which sets always have the same order."""
    with closing(Child(__name__, pack((tasks, sizes)), environment=_SAME_SETS)) as child:
        made: Splits | Exception = unpack("".join(iter(lambda: child.receive()["part"], "")))
    if isinstance(made, Exception):
        raise made
    return made


def open_task(
    name: str, difficulty: int | None, configs: Configs, *, seed: int, num_rows: int
) -> tuple[Any, dict[str, Any]]:
    """Returns the package's data set of a task, and the settings that it was made with.

    ValueError if the package is missing, or has no such task or setting.
    """
    if find_spec("reasoning_gym") is None:
        raise ValueError(INSTALL)
    with warnings.catch_warnings():  # of a package that it imports
        warnings.simplefilter("ignore", SyntaxWarning)
        from reasoning_gym.factory import (
            DATASETS,
            create_curriculum,
            create_dataset,
            has_curriculum,
        )

    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS)
        raise ValueError(f"env.task={name} is no task of reasoning-gym{hint}")
    if name in REFUSED:
        raise ValueError(f"env.task={name} {WHY_REFUSED}")
    config: dict[str, Any] = {}
    if difficulty is not None:
        if not has_curriculum(name):
            raise ValueError(f"env.task={name} has no levels: unset env.difficulty")
        config = _of_level(create_curriculum(name), difficulty)
    config |= configs.get(name, {})
    tries = _TRIED_AT_LEAST + _TRIED_PER_ROW * num_rows
    own_seed = random.Random(f"{seed}/{name}").getrandbits(31)
    try:
        settings = with_enums(config, DATASETS[name][1])
        return create_dataset(name, **{**settings, "seed": own_seed, "size": tries}), config
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"env.config of {name}, {json.dumps(config)}, is refused by reasoning-gym: {error}"
        ) from None


def _of_level(curriculum: Any, level: int) -> dict[str, Any]:
    """Returns the settings of one level; an attribute with fewer levels stays at its last."""
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
    made = vars(curriculum.generate_configuration())
    return {name: value for name, value in made.items() if name not in ("seed", "size")}


def _problems(name: str, dataset: Any, config: Mapping[str, Any]) -> Iterator[TextProblem]:
    """Yields different questions; stops if the first tries give none."""
    from rl_core.envs.reasoning_gym.scoring import score_answer  # loads sympy

    seen: set[str] = set()
    for index in range(dataset.size):
        if index == _TRIED_AT_LEAST and not seen:
            return
        entry = dataset[index]
        if not isinstance(entry["answer"], str):
            raise ValueError(
                f"env.task={name}: the package has no answer of its own to this task's questions, "
                "by which its scorer could be proved: leave the task out"
            )
        truth = _truth(name, config, entry)
        key = " ".join(entry["question"].split())
        is_new = truth is not None and key and key not in seen
        if is_new and score_answer(dataset, truth["answer"], truth) == 1:
            seen.add(key)
            yield TextProblem(entry["question"], truth, name, truth["answer"])


def _truth(name: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
    """Returns what the scorer reads, as the data set's file holds it; None if JSON cannot."""
    known = {"task": name, "config": dict(config)}
    known |= {part: entry[part] for part in ("question", "answer", "metadata")}
    try:
        return json.loads(json.dumps(to_json(known), allow_nan=False))
    except (TypeError, ValueError):
        return None


def _shares(weights: Collection[float], size: int) -> list[int]:
    """Returns the rows of each task, by largest remainders."""
    exact = [size * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: size - sum(counts)]:
        counts[i] += 1
    return counts


def _answer_parent() -> None:
    import numpy as np

    channel = channel_to_parent()
    random.seed(0)  # codeio runs programs that draw numbers without a seed
    np.random.seed(0)  # some draw from numpy's
    made: Splits | Exception
    try:
        tasks, sizes = unpack(sys.argv[1])
        made = make_problems(*tasks, **sizes)
    except Exception as error:  # noqa: BLE001  # the parent raises it
        made = error
    text = pack(made)
    for start in range(0, len(text) + _PART, _PART):  # the last is empty
        channel.send({"part": text[start : start + _PART]})


if __name__ == "__main__":
    _answer_parent()
