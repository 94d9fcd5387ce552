"""ATTACKS by a downloaded model's folder: its code is not run, whoever would say yes to it."""

import ast
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import rl_core
from rl_core.data.prompts import load_tokenizer
from rl_core.models.loading import load_actor
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.model_files import stop_token_ids, weight_shapes

CODE = """
from pathlib import Path
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
Path({marker!r}).touch()
class Config(PretrainedConfig): model_type = "trap"
class Model(PreTrainedModel): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
"""
LOADERS: list[Callable[[Path], object]] = [
    weight_shapes,
    stop_token_ids,
    lambda folder: load_tokenizer(str(folder)),
    lambda folder: load_actor(folder, torch.device("cpu")),
    lambda folder: HfEngine(folder, dtype="float32", max_num_seqs=4, on_gpu=False),
]


@pytest.mark.parametrize("loader", LOADERS)
def test_the_code_of_a_models_folder_is_not_run(loader, tiny_model_path, tmp_path, monkeypatch):
    folder, marker = tmp_path / "model", tmp_path / "was-run"
    shutil.copytree(tiny_model_path, folder)
    (folder / "trap.py").write_text(CODE.format(marker=str(marker)))
    named = {"AutoConfig": "trap.Config", "AutoModelForCausalLM": "trap.Model"}
    for name, more in (
        ("config.json", {"auto_map": named, "model_type": "trap"}),
        (
            "tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": [None, "trap.Tokenizer"]}, "tokenizer_class": "Trap"},
        ),
    ):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | more))
    (folder / "generation_config.json").unlink(missing_ok=True)
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    with suppress(ValueError, OSError):  # refused; a tokenizer can be read without it
        loader(folder)
    assert asked == []
    assert not marker.exists()


def test_every_call_that_could_run_a_models_code_says_that_it_may_not():
    missing = []
    root = Path(rl_core.__file__).parents[1]
    files = [file for room in ("flows", "tasks", "rl_core") for file in (root / room).rglob("*.py")]
    for file in files:
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            loads = called.endswith((".from_pretrained", ".from_config"))
            # PEFT's reads no code; what it may import by its settings is refused before.
            exempt = called.startswith(("GenerationConfig.", "ModelShape.", "cls.", "peft."))
            if loads and not exempt and "trust_remote_code=False" not in ast.unparse(call):
                missing.append(f"{file.name}:{call.lineno} {called}")
    assert missing == []
