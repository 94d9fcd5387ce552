import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from rl_core.models.loading import complete_weights, load_actor
from rl_core.models.saving import save_actor, save_beside_parts, save_part
from rl_core.rollout.model_files import read_weights


@pytest.fixture(scope="module")
def actor(tiny_model_path: Path) -> transformers.PreTrainedModel:
    return load_actor(tiny_model_path, torch.device("cpu"))


def test_a_saved_actor_loads_with_transformers_as_it_was(actor, tiny_model_path, tmp_path):
    save_actor(actor, complete_weights(actor), tiny_model_path, tmp_path / "saved")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    for name, tensor in actor.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    text = "3 + 4 = 7"
    saved, original = (
        transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        for folder in (tmp_path / "saved", tiny_model_path)
    )
    assert saved.encode(text) == original.encode(text)
    assert saved.decode(saved.encode(text)) == text
    assert loaded.generation_config.eos_token_id == 1


def test_a_model_saved_in_parts_is_the_same_folder_but_for_its_safetensors(
    actor, tiny_model_path, tmp_path
):
    weights = complete_weights(actor)
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    save_actor(actor, weights, tiny_model_path, whole)
    owners = {name: number % 3 for number, name in enumerate(weights)}
    for part in range(3):
        own = {name: weights[name] for name, owner in owners.items() if owner == part}
        save_part(own, parted, part, 3)
    save_beside_parts(actor, owners, 3, tiny_model_path, parted)

    for file in whole.iterdir():
        if file.name != "model.safetensors":
            assert (parted / file.name).read_bytes() == file.read_bytes(), file.name
    index = json.loads((parted / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file_name in index.items():
        assert torch.equal(load_file(parted / file_name)[name], weights[name])
    assert index.keys() == weights.keys() == read_weights(parted).keys()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(parted)
    for name, tensor in actor.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
