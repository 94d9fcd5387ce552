import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rl_core.data.gguf_source import local_folder
from rl_core.data.prompts import load_tokenizer, resolve_model
from rl_core.models.folder_check import check_model_folder
from tests.support.adapters import IDS, save_adapter


@pytest.fixture
def base(tiny_model_path, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model_path, tmp_path / "base"))


def change(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_an_adapter_is_merged_once_into_its_base_by_hand(base, tmp_path):
    adapter, root = tmp_path / "mine", tmp_path / "outputs"
    save_adapter(base, adapter)
    folder = resolve_model(str(adapter), root)
    assert folder.parent == root / "models"
    assert folder.name.startswith("mine-")
    check_model_folder(folder)
    before, after = (load_file(one / "model.safetensors") for one in (base, folder))
    lora = load_file(adapter / "adapter_model.safetensors")
    for name, weight in before.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        changed = weight.float()
        if f"{layer}.lora_A.weight" in lora:  # W + alpha / r B A
            a, b = lora[f"{layer}.lora_A.weight"], lora[f"{layer}.lora_B.weight"]
            changed = changed + 6 / 2 * b @ a
            assert not torch.equal(changed, weight.float())
        torch.testing.assert_close(after[name], changed)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(adapter), root) == local_folder(str(adapter), root) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.encode("3 + 14") == load_tokenizer(str(base)).encode("3 + 14")


@pytest.mark.parametrize(
    "settings",
    [{"use_rslora": True}, {"use_dora": True}, {"modules_to_save": ["lm_head"], "bias": "all"}],
    ids=str,
)
def test_any_kind_of_lora_computes_what_peft_does(settings, base, tmp_path):
    expected = save_adapter(base, tmp_path / "mine", **settings)
    folder = resolve_model(str(tmp_path / "mine"), tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


def test_another_base_or_adapter_has_another_folder(base, tmp_path):
    adapter = tmp_path / "mine"
    save_adapter(base, adapter)
    first = local_folder(str(adapter), tmp_path)
    weights = load_file(base / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, base / "model.safetensors")
    second = local_folder(str(adapter), tmp_path)
    change(adapter, lora_alpha=4)
    assert len({first, second, local_folder(str(adapter), tmp_path)}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"base_model_name_or_path": "nobody/nothing"},
            "it is an adapter of nobody/nothing, which",
        ),
        ({"base_model_name_or_path": None}, "its base is not named: set base_model_name_or_path"),
        ({"peft_type": "PROMPT_TUNING"}, "kind PROMPT_TUNING, and only LORA can be merged"),
        ({"megatron_config": {"a": 1}, "megatron_core": "os.a"}, "kind MEGATRON, and only LORA"),
        ({"r": 3}, "it cannot be merged into .*size mismatch"),
        ({"r": 10**9}, "size mismatch: rank 1000000000 or more, of tensors of 128"),
        ({"rank_pattern": {"q_proj": 10**9}}, "size mismatch: rank 2 or more"),
        ({"layer_replication": [[0, 2]] * 10_000}, "it repeats layers"),
        ({"alpha_pattern": {r"(\w+\.?)+x": 1}}, "alpha_pattern has the pattern .*names of modules"),
        ({"modules_to_save": [r"(\w+\.?)+x"]}, "modules_to_save has the pattern .*names of mod"),
        ({"layers_to_transform": [0], "layers_pattern": r"(\w+\.?)+x"}, "layers_pattern has the"),
        ({"init_lora_weights": "pissa_niter_999999999"}, "begin by more than 100 rounds"),
        ({"target_modules": ["q_proj"]}, "only one of the two has .* tensors: .*down_proj.lora_A"),
        ({"target_modules": ["q_proj", "down_proj", "k_proj"]}, "only one .*k_proj.lora_A"),
    ],
    ids=str,
)
def test_what_cannot_be_merged_is_refused_in_one_line(changes, said, base, tmp_path):
    adapter, root = tmp_path / "mine", tmp_path / "outputs"
    save_adapter(base, adapter)
    change(adapter, **changes)
    refused(adapter, root, said)


def test_pickles_damage_and_quantized_bases_are_refused(base, tmp_path):
    adapter, root = tmp_path / "mine", tmp_path / "outputs"
    save_adapter(base, adapter)
    config = json.loads((base / "config.json").read_text())
    method = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    refused(adapter, root, r"its base .*base is quantized: name the model")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(adapter, root, r"no adapter_model.safetensors, and pickles \(\*.bin\) can execute")
    (adapter / "adapter_config.json").write_text("{")
    refused(adapter, root, r"adapter_config.json is no JSON object .*: copy it")


def test_a_pattern_of_modules_is_not_matched(base, tmp_path):
    """This one would take hours for a name of 30 letters."""
    adapter = tmp_path / "mine"
    expected = save_adapter(base, adapter)
    change(adapter, target_modules=r"(\w+\.?)+!", exclude_modules=r"(\w+\.?)+!")
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve_model(str(adapter), tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-5)


def refused(adapter: Path, root: Path, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        resolve_model(str(adapter), root)
    line = str(caught.value)
    assert line.startswith(f"model.path={adapter}: ")
    assert "\n" not in line
    assert not [path for path in root.rglob("*") if path.is_dir() and path.name != "models"]


def test_an_adapter_of_a_hub_is_merged_too(base, hub_cache, tmp_path):
    folder = hub_cache / "models--me--lora"
    save_adapter(base, folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    merged = resolve_model("me/lora", tmp_path)
    assert merged == resolve_model(str(folder / "snapshots" / "abc"), tmp_path)
    assert merged.parent == tmp_path / "models"
