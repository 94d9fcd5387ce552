"""A test split of tiny Countdown problems, and engines that answer it as they are told."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.data.prompts import load_tokenizer
from rl_core.envs.countdown.puzzles import COUNTDOWN_DATASET
from rl_core.types import Completion, GenerationRequest, SamplingSettings
from tests.support.own_data import tinyzero_row

Puzzle = tuple[str, list[int], int, str, int]
"""A prompt, its numbers, target, solution, and how many solutions there are."""


def write_test_split(folder: Path, prompts: Iterable[str]) -> Path:
    """Writes one problem per prompt into a new folder, and returns it: 2 and i make 2 + i."""
    return write_puzzles(folder, [(p, [2, i], 2 + i, f"2+{i}", 1) for i, p in enumerate(prompts)])


def write_puzzles(folder: Path, puzzles: Iterable[Puzzle]) -> Path:
    folder.mkdir()
    rows = []
    for i, (prompt, nums, target, solution, num_solutions) in enumerate(puzzles):
        row = tinyzero_row(nums, target, i, split="test")
        row["prompt"] = [{"role": "user", "content": prompt}]
        row["extra_info"] |= {"num_solutions": num_solutions, "solution": solution}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows, COUNTDOWN_DATASET), folder / "test.parquet")
    return folder


class AnsweringEngines:
    """Engines whose answer to a prompt is what `answer` returns, of greedy or sampled text."""

    def __init__(self, model_path: Path) -> None:
        self._tokenizer = load_tokenizer(str(model_path))
        self.calls = 0
        self.loaded: list[str] = []

    def answer(self, prompt: str, position: int, *, sampled: bool) -> str:
        raise NotImplementedError

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        self.calls += 1
        completions = []
        for i, request in enumerate(requests):
            prompt = str(self._tokenizer.decode(request.prompt_ids))
            text = self.answer(prompt, i, sampled=sampling.temperature > 0)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            completions.append(Completion(np.array(ids), np.zeros(len(ids), np.float32), "stop"))
        return completions
