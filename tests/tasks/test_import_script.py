from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tasks.import_script import Imported, import_script
from tests.tasks.launch_scripts import PLANTED, SOUND


def said(imported: Imported, line: int) -> list[str]:
    return [str(one) for one in imported.findings if one.check == f"line {line}"]


def test_a_sound_script_becomes_a_preset_without_a_warning() -> None:
    imported = import_script(SOUND)
    assert [str(one) for one in imported.findings if one.level == "warning"] == []
    assert yaml.safe_load(imported.preset("train.sh")) == {
        "data": {"train_batch_size": 256, "max_prompt_length": 256, "max_response_length": 1024},
        "model": {"path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16"},
        "actor": {
            "lr": 1e-6,
            "mini_batch_size": 128,
            "micro_batch_tokens": 8 * 1280,
            "clip_eps_low": 0.25,
            "clip_eps_high": 0.25,
        },
        "algorithm": {
            "group_size": 5,
            "estimator": "grpo",
            "kl_mode": "loss",
            "kl_coef": 0.005,
            "kl_estimator": "k3",
        },
        "rollout": {"gpu_memory_utilization": 0.4, "num_engines": 1},
        "trainer": {
            "logger": ["console", "wandb"],
            "save_freq": 5000,
            "wandb_project": "count down",
            "total_epochs": 1,
        },
        "resources": {"learner_gpus": 1, "rollout_gpus": 1},
    }


def test_every_planted_mistake_is_found_where_it_is() -> None:
    imported = import_script(PLANTED)
    assert said(imported, 2) == []  # the pipe belongs to what line 10 cut off
    assert "data/countdown/train.parquet is not here" in said(imported, 3)[0]
    assert said(imported, 5) == [
        "data.val_batch_size does nothing here: the test split is generated at once; "
        "it never helped against memory"
    ]
    (typo,) = said(imported, 6)
    assert "data.max_promt_length" in typo
    assert "did you mean data.max_prompt_length?" in typo
    (mini,) = said(imported, 8)
    assert "scaled by 0.25" in mini  # 32 / 128
    blank, parallel = said(imported, 10)
    assert "loses 6 settings" in blank
    assert "tensor_model_parallel_size 2 needs more than the 1 GPUs" in parallel
    tee, double, _ = said(imported, 11)
    assert "given twice, 4 in line 9 and 2 here: the last one wins: 2" in double
    assert "exit code is tee's" in tee
    (alone,) = said(imported, 12)
    assert "every advantage is 0" in alone
    assert "$NAME is not set in this script" in said(imported, 13)[0]


def test_an_estimators_name_overwritten_by_a_number_is_found() -> None:
    script = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n"
    script += "  algorithm.adv_estimator=0.95 data.train_batch_size=256\n"
    double, number = said(import_script(script), 2)
    assert "given twice, grpo in line 1 and 0.95 here" in double
    assert "is a number where an estimator's name belongs" in number
    assert "algorithm.estimator" not in import_script(script).settings


def test_saving_more_often_than_the_disk_bears_is_found() -> None:
    """Qwen2.5-3B with a critic: 3.09e9 weights of 4 bytes, the critic's, both moments of both."""
    (found,) = said(import_script(PLANTED), 15)
    # 327,680 puzzles in batches of 32, 15 epochs: 153,600 steps, every tenth saved.
    assert "15360 checkpoints of" in found
    assert "full in step" in found


def test_data_that_is_here_is_used(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.touch()
    command = f"python3 -m verl.trainer.main_ppo data.train_files={file} data.train_batch_size=8"
    assert import_script(command).settings["data.train_files"] == str(file)


def test_an_instruction_model_gets_its_prompt() -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Q/q-Instruct"
    assert import_script(command).settings["env.prompt_template"] == "qwen-instruct"


def test_a_file_without_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="no command with settings"):
        import_script("echo hello\n")
