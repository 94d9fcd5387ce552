"""Environments as modules of verifiers have them."""

import verifiers
from datasets import Dataset

ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(8)]


def right(completion, answer):
    return float(completion[-1]["content"].strip() == answer)


async def is_short(completion, info):
    return float(len(completion[-1]["content"]) < 3 and info == {})


def load_environment():
    """Sums."""
    rubric = verifiers.Rubric(funcs=[right, is_short], weights=[1.0, 0.5])
    rows = Dataset.from_list(ROWS)
    return verifiers.SingleTurnEnv(dataset=rows, system_prompt="Be brief.", rubric=rubric)
