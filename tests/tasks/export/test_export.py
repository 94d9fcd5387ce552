"""Export: the folder that others load, and its card."""

import peft
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_core.runs.run_folder import RunFolder
from tasks.export import export_model, model_card
from tasks.queries.checkpoint_names import NamedModel
from tests.support.adapters import save_learner


def test_the_folder_loads_in_the_type_that_was_asked_for(cli, tmp_path, tiny_model_path):
    to = tmp_path / "exported"
    cli("export", str(tiny_model_path), f"to={to}")
    model = AutoModelForCausalLM.from_pretrained(to)
    assert model.dtype == torch.bfloat16
    source = load_file(tiny_model_path / "model.safetensors")
    written = load_file(to / "model.safetensors")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[name], source[name].bfloat16()) for name in source)
    text = "Using the numbers [3, 14, 7]"
    tokenizer = AutoTokenizer.from_pretrained(to)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (to / "README.md").read_text().startswith("---\nlibrary_name: transformers\n")


def test_weights_in_several_files_stay_in_several(tmp_path, tiny_model_path):
    folder = tmp_path / "model"
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    named = NamedModel("any", folder, None, 0)
    to = export_model(named, tmp_path, dtype="float32", to=tmp_path / "to")
    again = AutoModelForCausalLM.from_pretrained(to).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_an_adapter_is_exported_for_peft(cli, tmp_path, tiny_model_path):
    save_learner(tiny_model_path, tmp_path / "saved")
    to = tmp_path / "exported"
    cli("export", str(tmp_path / "saved"), f"to={to}", "adapter=true")
    cli("export", str(tmp_path / "saved"), f"to={tmp_path / 'merged'}", "dtype=float32")
    base = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ids = torch.arange(2, 12).unsqueeze(0)
    with torch.no_grad():
        logits = peft.PeftModel.from_pretrained(base, to)(ids).logits
        torch.testing.assert_close(logits, merged(ids).logits, atol=1e-5, rtol=0)
    assert AutoTokenizer.from_pretrained(to).decode([5]) is not None
    _, front, text = (to / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "peft"
    assert f"An adapter (LoRA) of {tiny_model_path.name}" in text
    assert str(tiny_model_path) not in text


def test_a_weight_too_large_for_the_type_is_refused_and_leaves_nothing(tmp_path, tiny_model_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_model_path / "config.json").read_bytes())
    save_file({"big": torch.tensor([1e6])}, folder / "model.safetensors")
    model = NamedModel("any", folder, None, 0)
    with pytest.raises(ValueError, match=r"big holds 1e\+06, too large for torch.float16"):
        export_model(model, tmp_path, dtype="float16", to=tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_card_says_data_settings_and_accuracy(two_runs, tiny_model_path):
    run = RunFolder.under(two_runs, "alpha")
    settings = {
        "model": {"path": "Qwen/Qwen2.5-0.5B"},
        "env": {"name": "countdown", "prompt_template": "base"},
        "data": {"train_batch_size": 64},
        "algorithm": {"estimator": "grpo", "group_size": 8},
        "storage": {"root": "/home/somebody"},
    }
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    model = NamedModel("alpha/step_000003", tiny_model_path, run, 3)
    to = export_model(model, two_runs, dtype="bfloat16", to=two_runs / "to")
    card = (to / "README.md").read_text()
    _, front, _ = card.split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == "Qwen/Qwen2.5-0.5B"
    assert "# alpha/step_000003" in card
    assert "| base | 4 | 0.250 | 0.046 to 0.699 |" in card
    assert "| step_000003 | 4 | 0.500 | 0.150 to 0.850 |" in card
    assert "estimator: grpo" in card
    assert "somebody" not in card


def test_settings_of_a_strangers_run_stay_text_in_its_card(two_runs, tiny_model_path):
    run = RunFolder.under(two_runs, "alpha")
    name = "x/y\n---\n<script>"
    settings = {"model": {"path": name}, "env": {"name": "a\n```\n<b>"}}
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    model = NamedModel("alpha/step_000003", tiny_model_path, run, 3)
    card = model_card(model, two_runs, holds="Weights", library="peft")
    _, front, rest = card.split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == name
    assert rest.count("```") == 2, "its block ends at its end"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{model}"], "export takes a CHECKPOINT"),
        (["to={tmp}/to"], "export takes a CHECKPOINT"),
        (["{model}", "to={tmp}"], "exists already: name a new folder"),
        (["{model}", "to={tmp}/to", "dtype=int4"], "dtype=int4 is not float32, bfloat16"),
        (["{model}", "to={tmp}/to", "seed=1"], "'seed=1': export takes to, dtype"),
        (["{model}", "to={tmp}/to", "adapter=yes"], "adapter=yes must be true or false"),
        (["{model}", "to={tmp}/to", "adapter=true"], "holds no adapter (model.lora_rank=0)"),
        (["{model}", "to={tmp}/to", "adapter=true", "dtype=float16"], "leave dtype out"),
        (["nothing/here/at/all", "to={tmp}/to"], "nothing/here/at/all"),
    ],
)
def test_no_export_ends_with_2(cli, monkeypatch, tmp_path, tiny_model_path, words, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file").touch()
    given = [word.format(model=tiny_model_path, tmp=tmp_path) for word in words]
    assert said in cli("export", *given, code=2, root=None).err
    assert not (tmp_path / "to").exists()
