from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.importers.launch_script import Imported, import_script

RAW = "A conversation between User and Assistant.\nUser: Make 4.\nAssistant: Let me think.\n<think>"
FOUR = {"target": 4, "numbers": [1, 3]}


def parquet(file: Path, source: str, prompt: str, truth: Any) -> Path:
    row = {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": truth},
    }
    pq.write_table(pa.Table.from_pylist([row] * 40), file)
    return file


def imported(train: object, *more: str) -> Imported:
    words = [f'data.train_files="{train}"', "actor_rollout_ref.model.path=Q/q-1.5B", *more]
    return import_script(f"python3 -m verl.trainer.main_ppo {' '.join(words)}\n")


def warnings(result: Imported) -> str:
    return " | ".join(str(one) for one in result.findings if one.level == "warning")


@pytest.mark.parametrize(
    ("source", "prompt", "truth", "expected"),
    [
        ("openai/gsm8k", "What is 9 and 9?", "18", ("gsm8k", None)),
        ("countdown", RAW, FOUR, ("countdown", None)),
        ("countdown", "<|im_start|>user\nMake 4.", FOUR, ("countdown", "qwen-instruct")),
        ("countdown", "Make 4 of 1, 3.", FOUR, ("countdown", "chat")),
    ],
)
def test_rows_say_what_the_problems_are(tmp_path, source, prompt, truth, expected):
    file = parquet(tmp_path / "train.parquet", source, prompt, truth)
    more = ("data.train_batch_size=8", "trainer.total_epochs=2", "critic.optim.warmup_style=cosine")
    settings = imported(file, *more).settings
    assert settings["trainer.total_steps"] == 10  # 40 rows, 5 batches, twice
    assert settings["data.train_files"] == [str(file)]
    assert (settings["env.name"], settings.get("env.prompt_template")) == expected


def test_what_is_here_of_several_files_is_kept(tmp_path):
    here = parquet(tmp_path / "gsm8k.parquet", "openai/gsm8k", "What?", "18")
    result = imported(f"['{here}', '{tmp_path}/math.parquet']")
    assert result.settings["data.train_files"] == [str(here)]
    assert f"{tmp_path}/math.parquet is not here: left out" in [str(one) for one in result.findings]


def test_problems_of_another_kind_are_a_warning(tmp_path):
    file = parquet(tmp_path / "train.parquet", "lighteval/MATH", "What?", "18")
    assert "data_source=lighteval/MATH, which no env here is made for" in warnings(imported(file))
    assert imported(file).settings["env.name"] == "gsm8k"
    words = parquet(tmp_path / "capitals.parquet", "mine/capitals", "Of France?", "Paris")
    assert imported(words).settings["env.name"] == "custom"
    judged = imported(words, "custom_reward_function.path=judge.py")
    assert judged.settings["env.reward"] == "judge:compute_score"
    assert "no env here is made for" not in warnings(judged)  # nor need be: the function scores
    named = parquet(tmp_path / "gsm8k.parquet", "lighteval/MATH", "What?", "18")
    assert "which no env here is made for" in warnings(imported(named))
    plain = tmp_path / "mine.jsonl"
    plain.write_text('{"nums": [1, 3], "target": 4}\n')
    assert imported(plain).settings["env.name"] == "countdown"
    unknown = imported(tmp_path / "absent.parquet")
    assert "the kind of problems is not known" in warnings(unknown)
