import json

import pytest
import torch

from rl_core.config.run import RunConfig
from rl_core.learner.state import (
    check_settings,
    model_settings,
    read_state,
    restore_rng,
    rng_tensors,
    write_state,
)


def test_state_comes_back_as_it_was_without_pickle(tmp_path):
    tensors = {"a": torch.randn(3, 2).T, "step": torch.tensor(7.0)}
    numbers = {"kl_coef": 0.1 + 0.2, "schedule": {"last_epoch": 3, "rates": [1e-6]}}
    write_state(tmp_path / "new", tensors, numbers)
    read_tensors, read_numbers = read_state(tmp_path / "new")
    assert {name: torch.equal(x, tensors[name]) for name, x in read_tensors.items()} == {
        "a": True,
        "step": True,
    }
    assert {name: read_numbers[name] for name in numbers} == numbers
    assert {file.suffix for file in (tmp_path / "new").iterdir()} == {".json", ".safetensors"}


def test_parts_of_several_ranks_come_back_as_one_state(tmp_path):
    tensors = {name: torch.randn(3) for name in "abc"}
    for rank, name in enumerate(tensors):
        write_state(tmp_path, {name: tensors[name]}, {"kl_coef": 0.1 * rank}, rank, 3)
    read_tensors, numbers = read_state(tmp_path)
    assert {name: x.tolist() for name, x in read_tensors.items()} == {
        name: x.tolist() for name, x in tensors.items()
    }
    assert numbers["kl_coef"] == 0.0
    (tmp_path / "learner-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"resume from, learner-00002-of-00003\.safetensors is"):
        read_state(tmp_path)


def test_random_numbers_continue_where_they_were():
    states = {name: state.clone() for name, state in rng_tensors().items()}
    first = torch.randn(5)
    torch.randn(100)
    restore_rng(states)
    assert torch.equal(torch.randn(5), first)


@pytest.mark.parametrize("missing", ["learner.safetensors", "learner.json"])
def test_a_folder_without_state_is_one_clear_line(tmp_path, missing):
    write_state(tmp_path, {"a": torch.zeros(1)}, {})
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match=f"nothing to resume from, {missing} is missing") as error:
        read_state(tmp_path)
    assert "\n" not in str(error.value)


def test_a_state_of_another_version_is_refused(tmp_path):
    write_state(tmp_path, {"a": torch.zeros(1)}, {})
    (tmp_path / "learner.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(ValueError, match="version is 99 and not 1: report"):
        read_state(tmp_path)


def test_a_state_is_for_the_adapters_and_the_critic_it_was_written_with(tmp_path):
    plain = RunConfig()
    adapted = RunConfig.model_validate({"model": {"lora_rank": 4}})
    for config in (plain, adapted):
        saved = {"critic_schedule": {}, "settings": model_settings(config)}
        check_settings(tmp_path, saved, config)
    saved["settings"] = model_settings(plain)
    # An alpha that scales nothing.
    check_settings(tmp_path, saved, RunConfig.model_validate({"model": {"lora_alpha": 3.0}}))
    other_rank = RunConfig.model_validate({"model": {"lora_rank": 8}})
    other_alpha = RunConfig.model_validate({"model": {"lora_rank": 4, "lora_alpha": 3.0}})
    of_adapters = saved | {"settings": model_settings(adapted)}
    rounded = saved | {"settings": {**saved["settings"], "actor.optimizer": "adamw_8bit"}}
    for of, numbers, said in (
        (adapted, saved, "saved with .*lora_rank=0, so .* cannot resume"),
        (plain, of_adapters, "lora_rank=4, so model.lora_rank=0 cannot"),
        (other_rank, of_adapters, "lora_rank=4, so model.lora_rank=8 cannot"),
        (other_alpha, of_adapters, "lora_alpha=16.0, so model.lora_alpha=3.0 cannot"),
        (plain, rounded, r'with actor\.optimizer="adamw_8bit", so .*="adamw" cann'),
        (plain, {"settings": saved["settings"]}, "saved without a critic"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            check_settings(tmp_path, numbers, of)
        assert "\n" not in str(error.value)


def test_a_state_leads_to_no_other_folder(tmp_path):
    """It may be of a run that somebody else made."""
    write_state(tmp_path / "theirs", {}, {"files": ["../ours.safetensors"]})
    write_state(tmp_path, {}, {})
    (tmp_path / "learner.safetensors").rename(tmp_path / "ours.safetensors")
    with pytest.raises(ValueError, match=r"theirs: nothing to resume from, ours\.safetensors is"):
        read_state(tmp_path / "theirs")
    (tmp_path / "theirs" / "learner.json").unlink()
    (tmp_path / "theirs" / "learner.json").symlink_to(tmp_path / "learner.json")
    with pytest.raises(ValueError, match="is a link"):
        read_state(tmp_path / "theirs")
