import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl_core.models.folder_check import check_model_folder
from rl_core.models.loading import load_actor, load_causal_lm
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.model_files import check_finite
from tests.support.model_shapes import SMALL

CPU = torch.device("cpu")


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_path, tmp_path / "model"))


def change_config(folder: Path, **settings: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder: Path) -> str:
    """What the check says, and the learner's and the engine's load: the same."""
    said = []
    for load in (
        check_model_folder,
        lambda path: load_actor(path, CPU),
        lambda path: HfEngine(path, dtype="float32", max_num_seqs=1, on_gpu=False),
    ):
        with pytest.raises(ValueError, match=r"^model\.path=[^\n]*: [^\n]*: [^\n]+$") as caught:
            load(folder)
        said.append(str(caught.value))
    assert len(set(said)) == 1
    return said[0]


@pytest.mark.parametrize(
    ("made", "is_tied"),
    [
        (transformers.Qwen2Config(**SMALL), True),
        (transformers.Qwen3Config(**SMALL, head_dim=16), False),
        (transformers.LlamaConfig(**SMALL), True),
        (transformers.MistralConfig(**SMALL), False),
        (transformers.GPTNeoXConfig(**SMALL), False),
        (transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2), True),
        (transformers.MixtralConfig(**SMALL, num_local_experts=2), False),
        (transformers.Qwen3MoeConfig(**SMALL, num_experts=2, moe_intermediate_size=16), False),
        (transformers.Olmo2Config(**SMALL), False),
    ],
    ids=lambda made: getattr(made, "model_type", str(made)),
)
@pytest.mark.parametrize("size", ["1GB", "30KB"])
def test_whole_models_of_many_kinds_pass_in_one_file_and_in_parts(made, is_tied, size, tmp_path):
    made.tie_word_embeddings = is_tied
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "30KB")
    check_model_folder(tmp_path)
    load_causal_lm(tmp_path, torch.bfloat16)


def test_a_model_saved_without_its_head_passes_if_the_head_is_tied(tmp_path):
    for is_tied in (True, False):
        config = transformers.Qwen2Config(**SMALL, tie_word_embeddings=is_tied)
        transformers.Qwen2Model(config).save_pretrained(tmp_path / str(is_tied))
    check_model_folder(tmp_path / "True")
    load_causal_lm(tmp_path / "True", torch.float32)
    assert "1 of 27 tensors are in none of its files (lm_head.weight)" in refused(
        tmp_path / "False"
    )


NO_DECODER, STATE = "no decoder-only causal LM", "carries a state from token to token"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (transformers.BertConfig(**SMALL), NO_DECODER),
        (transformers.T5Config(vocab_size=64, d_model=32, d_ff=32, num_layers=1), NO_DECODER),
        (transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1), STATE),
        (transformers.JambaConfig(**SMALL, num_experts=2, use_mamba_kernels=False), STATE),
    ],
    ids=["bert", "t5", "mamba", "jamba"],
)
def test_what_is_no_decoder_with_attention_is_refused_by_name(config, kind, tmp_path):
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    said = refused(tmp_path)
    assert kind in said
    assert repr(config.model_type) in said


def test_a_folder_that_lacks_a_layer_is_refused(folder):
    change_tensors(
        folder, lambda tensors: [tensors.pop(x) for x in [*tensors] if ".layers.1." in x]
    )
    said = refused(folder)
    assert "12 of 26 tensors are in none of its files (model.layers.1." in said
    assert ", ...), and would be random: copy the model again" in said


def test_a_parameter_that_only_the_load_finds_missing_is_refused_there(tmp_path):
    """Of a mixture of experts the files' names are not the class's: the header check passes."""
    config = transformers.MixtralConfig(**SMALL, num_local_experts=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.pop("model.norm.weight"))
    check_model_folder(tmp_path)
    with pytest.raises(ValueError, match=r"1 tensors would be random.*model\.norm\.weight"):
        load_causal_lm(tmp_path, torch.float32)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"intermediate_size": 256}, "has shape [128, 64], and config.json makes it [256, 64]"),
        ({"num_hidden_layers": 3}, "transformers builds no model from config.json"),
        ({"vocab_size": 300}, "has shape [258, 64], and config.json makes it [300, 64]"),
        ({"model_type": "no_such"}, "model_type='no_such', which is no decoder-only causal LM"),
        ({"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "code of the folder (auto_map)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights are quantized (gptq)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_of_another_model_is_refused(settings, said, folder):
    change_config(folder, **settings)
    assert said in refused(folder)


def test_a_config_that_is_cut_short_is_refused(folder):
    file = folder / "config.json"
    file.write_bytes(file.read_bytes()[:40])
    assert "config.json is no JSON object" in refused(folder)


@pytest.mark.slow
def test_a_million_layers_are_refused_before_they_are_built(folder):
    change_config(folder, num_hidden_layers=10**6, layer_types=None)
    assert "1,000,000 layers, and its files hold 26 tensors" in refused(folder)


HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def test_tied_weights_beside_another_head_are_refused(folder):
    """The learner would take the head, and vLLM the embedding."""
    change_tensors(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    check_model_folder(folder)  # the same numbers twice, as older libraries saved them
    change_tensors(folder, lambda tensors: tensors[HEAD][-1, -1].add_(1))
    said = refused(folder)
    assert f"config.json ties {HEAD} to {EMBEDDING} (tie_word_embeddings)" in said
    assert said.endswith("tie_word_embeddings=false in config.json, or save the model without it")
    change_tensors(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].half()}))
    assert "hold other numbers" in refused(folder)
    change_config(folder, tie_word_embeddings=False)
    check_model_folder(folder)


def test_a_tensor_under_two_names_is_refused(folder):
    short = EMBEDDING.removeprefix("model.")
    change_tensors(folder, lambda tensors: tensors.update({short: tensors[EMBEDDING] + 1}))
    assert f"its files hold {EMBEDDING} and {short}, and libraries take different" in refused(
        folder
    )


@pytest.mark.parametrize("kept", [-1, 10_000, 100, 8, 4, 0])
def test_a_file_that_is_cut_short_is_refused(kept, folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    said = refused(folder)
    if kept in (-1, 10_000):
        cut = len(whole[:kept])
        assert f"model.safetensors has {cut:,} bytes instead of {len(whole):,}" in said
    else:
        assert f"no safetensors file, or cut short in its header ({kept} bytes)" in said


def test_a_part_that_is_not_there_is_named(folder):
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="100KB")
    next(folder.glob("model-00002-*")).unlink()
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert "model.safetensors.index.json names model-00002-of-" in refused(folder)


def test_numbers_of_a_quantized_model_are_refused(folder):
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    assert f"{name} has dtype I8" in refused(folder)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_number_that_is_not_finite_is_found_when_it_is_loaded(value, folder):
    name = "model.layers.1.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors[name][3, 5].fill_(value))
    check_model_folder(folder)
    for load in (lambda path: load_actor(path, CPU), check_finite):
        with pytest.raises(ValueError, match=rf"{name} holds numbers that are not finite"):
            load(folder)
