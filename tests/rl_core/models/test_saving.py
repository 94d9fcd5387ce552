import json

import torch
import transformers
from safetensors.torch import load_file

from rl_core.models.loading import complete_weights
from rl_core.models.saving import save_actor, save_beside, save_index, save_part
from rl_core.rollout.model_files import read_weights


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
    save_beside(actor, tiny_model_path, parted)
    save_index(owners, 3, parted)

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
